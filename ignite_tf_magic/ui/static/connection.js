// Watches whether a widget's kernel is alive. Calls `changed(isLive)` on each change. Returns a function that stops watching.
//
// A front end knows when it restarts a kernel, but some never learn that a kernel has died. So a live kernel sends
// something every few seconds. A late message also counts, because the kernel may have been busy.
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
  const soon = () => setTimeout(look);  // after the front end has marked the view as disconnected
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
