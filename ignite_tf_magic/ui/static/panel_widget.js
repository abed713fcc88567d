// The panel as a widget of a notebook. Follows `igniteTfPanel`.
function render({model, el}) {
  const calls = [];
  igniteTfPanel(el, {
    seen: () => model.get("seen"),
    told: () => model.get("told"),
    onChange: (call) => { calls.push(call); model.on("change:seen", call); model.on("change:told", call); },
    act: (action, about, note) => model.send({action, about, note}),
  });
  return () => calls.forEach((call) => { model.off("change:seen", call); model.off("change:told", call); });
}
export default {render};
