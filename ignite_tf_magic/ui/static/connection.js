// Whether the kernel of a widget is still there. Calls `changed(isLive)` when that changes; returns what ends the watching.
//
// A front end knows when it restarts a kernel. Of one that has died some never hear: so a live kernel lets something be
// heard every few seconds. What is heard late is as good: it may have been busy.
function igniteTfConnection(model, el, changed) {
  const LOOK_MS = 2000, SILENCE_MS = 30000;
  const HEARD = "change msg:custom";
  let isLive = true, heardAt = Date.now();
  const isCut = () => el.closest(".jupyter-widgets-disconnected") !== null;
  function set(live) {
    if (live === isLive) return;
    isLive = live;
    changed(live);
  }
  function heard() {
    heardAt = Date.now();
    set(!isCut());
  }
  function look() {
    if (isCut() || Date.now() - heardAt > SILENCE_MS) set(false);
  }
  const soon = () => setTimeout(look);  // when the front end has marked the view, too
  for (const name of HEARD.split(" ")) model.on(name, heard);
  model.on("comm_live_update", soon);
  const timer = setInterval(look, LOOK_MS);
  soon();
  return () => {
    clearInterval(timer);
    for (const name of HEARD.split(" ")) model.off(name, heard);
    model.off("comm_live_update", soon);
  };
}
