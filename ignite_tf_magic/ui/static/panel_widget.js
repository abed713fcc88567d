// The panel as a notebook widget. Must come after `igniteTfPanel` and `igniteTfConnection`.
function render({model, el}) {
  const calls = [];
  let isLive = true;
  igniteTfPanel(el, {
    seen: () => model.get("seen"),
    told: () => model.get("told"),
    onChange: (call) => { calls.push(call); model.on("change:seen", call); model.on("change:told", call); },
    lost: () => isLive ? "" : "no longer connected to a kernel: run the cell again",
    act: (action, about, note) => model.send({action, about, note}),
  });
  const disconnect = igniteTfConnection(model, el, (live) => { isLive = live; calls.forEach((call) => call()); });
  return () => {
    disconnect();
    calls.forEach((call) => { model.off("change:seen", call); model.off("change:told", call); });
  };
}
export default {render};
