// The view of one run in a cell: its state, buttons, chart and output. Must come after `uPlot`, `igniteTfChart`,
// `igniteTfColoured` and `igniteTfConnection`.
const MAX_LINES = 2000;
// Output of bounded length. Old lines are removed. New lines do not move the view of a user who has scrolled up.
class Output {
  constructor(parent, label) {
    this.box = document.createElement("div");
    Object.assign(this.box, {className: "itm-output", tabIndex: 0});
    this.box.setAttribute("role", "log");
    this.box.setAttribute("aria-label", label);
    this.lines = document.createElement("pre");
    this.last = document.createElement("pre");
    this.box.append(this.lines, this.last);
    this.counts = [];
    parent.append(this.box);
  }
  atEnd(change) {
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 30;
    change();
    if (follows) this.box.scrollTop = this.box.scrollHeight;
  }
  add(lines) {
    if (!lines.length) return;
    this.atEnd(() => {
      const piece = document.createElement("span");
      piece.append(igniteTfColoured(lines.join("\n") + "\n"));
      this.lines.append(piece);
      this.counts.push(lines.length);
      let total = this.counts.reduce((sum, count) => sum + count, 0);
      while (this.counts.length > 1 && total - this.counts[0] >= MAX_LINES) {
        total -= this.counts.shift();
        this.lines.firstChild.remove();
      }
    });
  }
  progress(text) {
    if (text !== this.last.textContent) this.atEnd(() => { this.last.textContent = text; });
  }
}

function button(parent, label, title, act) {
  const made = document.createElement("button");
  Object.assign(made, {type: "button", textContent: label, title, className: "itm-button"});
  made.onclick = act;
  parent.append(made);
  return made;
}

function render({model, el}) {
  el.classList.add("itm-run");
  const head = document.createElement("div");
  head.className = "itm-head";
  head.innerHTML = '<span class="itm-dot" aria-hidden="true">\u25cf</span><span class="itm-id"></span>' +
    '<span class="itm-words" role="status" aria-live="polite"></span><span class="itm-buttons"></span>';
  const bar = document.createElement("div");
  bar.className = "itm-bar";
  bar.setAttribute("role", "progressbar");
  bar.append(document.createElement("div"));
  const note = document.createElement("div");
  note.className = "itm-note";
  const chartRoot = document.createElement("div");
  const tabs = document.createElement("div");
  Object.assign(tabs, {className: "itm-tabs"});
  tabs.setAttribute("role", "tablist");
  const texts = document.createElement("div");
  el.append(head, bar, note, chartRoot, tabs, texts);

  const buttons = head.querySelector(".itm-buttons");
  const ask = (action) => () => model.send({action});
  const stop = button(buttons, "Stop", "end the run's processes", () => {
    if (stop.textContent === "Stop") {
      stop.textContent = "Confirm";
      setTimeout(() => { if (stop.textContent === "Confirm") stop.textContent = "Stop"; }, 4000);
    } else {
      stop.textContent = "Stopping";
      stop.disabled = true;
      model.send({action: "stop"});
    }
  });
  const detach = button(buttons, "Detach", "stop watching; the run goes on", ask("detach"));
  const board = button(buttons, "TensorBoard", "open a TensorBoard of this run", ask("tensorboard"));

  let chart = null;
  const outputs = new Map();
  let chosen = "";
  function show(name) {
    chosen = name;
    for (const [each, {output, tab}] of outputs) {
      output.box.hidden = each !== name;
      tab.setAttribute("aria-selected", each === name);
      tab.tabIndex = each === name ? 0 : -1;
    }
  }
  function outputOf(name) {
    if (!outputs.has(name)) {
      const tab = button(tabs, name || "all", "output of " + (name || "all workers"), () => show(name));
      tab.setAttribute("role", "tab");
      outputs.set(name, {output: new Output(texts, "output of " + (name || "all workers")), tab});
      const inOrder = [...outputs].sort(([a], [b]) => a.localeCompare(b, undefined, {numeric: true}));
      outputs.clear();
      for (const [each, made] of inOrder) {
        outputs.set(each, made);
        tabs.append(made.tab);
      }
      tabs.hidden = outputs.size < 3;
      show(chosen);
    }
    return outputs.get(name).output;
  }
  tabs.onkeydown = (event) => {
    const names = [...outputs.keys()], step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    show(names[(names.indexOf(chosen) + step + names.length) % names.length]);
    outputs.get(chosen).tab.focus();
  };
  outputOf("");

  let isLive = true;
  function showState() {
    const state = model.get("state");
    head.querySelector(".itm-dot").style.color = state.colour;
    head.querySelector(".itm-id").textContent = state.run;
    head.querySelector(".itm-words").textContent = state.words;
    const isConnected = isLive || !state.live, id = state.run.replace("run ", "");
    const known = (state.share !== null && state.share !== undefined) || !state.live || !isConnected;
    bar.firstChild.style.width = known ? 100 * (state.share || 0) + "%" : "";
    bar.classList.toggle("itm-busy", !known);
    bar.setAttribute("aria-valuenow", known ? Math.round(100 * (state.share || 0)) : 0);
    if (stop.textContent === "Stopping" && state.can_stop && state.note !== "stopping ...") stop.textContent = "Stop";
    stop.disabled = !isConnected || !state.can_stop || stop.textContent === "Stopping";
    detach.disabled = !isConnected || !state.run || !state.can_leave;
    board.disabled = !isConnected || !state.run;
    buttons.hidden = !state.hears || !state.live;
    note.textContent = state.note || "";
    if (!isConnected) {
      note.textContent = "no longer connected to a kernel: " + (id ? "%ignite_tf attach " + id + " shows the run again" : "run the cell again");
      return;
    }
    if (state.url) {
      const link = document.createElement("a");
      Object.assign(link, {href: state.url, target: "_blank", rel: "noopener", textContent: state.url});
      note.append(" ", link);
    }
  }
  function showSeries() {
    const series = model.get("series");
    if (!series.metrics || !series.metrics.length) return;
    chart = chart || igniteTfChart(chartRoot, uPlot);
    chart.update(series);
  }
  // The lines of each tab are numbered, so none appears twice. `tail` has the lines sent before this page drew anything.
  const ends = new Map();
  function addNew(name, {lines, end}) {
    const seen = ends.get(name) || 0, fresh = Math.min(lines.length, end - seen);
    if (fresh > 0) outputOf(name).add(lines.slice(-fresh));
    ends.set(name, Math.max(seen, end));
  }
  function addAll({all, tasks}) {
    addNew("", all);
    for (const [name, lines] of Object.entries(tasks)) addNew(name, lines);
  }
  function take(message) {
    if (message.kind !== "output") return;
    addAll(message);
    outputOf("").progress(message.last);
  }
  const takeTail = () => addAll(model.get("tail"));
  model.on("change:state", showState);
  model.on("change:series", showSeries);
  model.on("change:tail", takeTail);
  model.on("msg:custom", take);
  showState();
  showSeries();
  takeTail();
  const disconnect = igniteTfConnection(model, el, (live) => { isLive = live; showState(); });
  return () => {
    disconnect();
    model.off("change:state", showState);
    model.off("change:series", showSeries);
    model.off("change:tail", takeTail);
    model.off("msg:custom", take);
    if (chart) chart.destroy();
  };
}

export default {render};
