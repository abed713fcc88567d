// The chart of a training: metrics over steps, epochs or time. Drag to zoom; a double click shows everything again.
//
// `series` is {runs: [{name, step, epoch, time, values: {metric: [number|text|null]}, not_finite: {metric: number}}],
// metrics: [metric]}: one run, or several to compare. A missing value is null; a value that is not finite is a text.
// `not_finite` counts all values that are not finite, even if `values` is only a sample.
// Needs `uPlot`. Returns {update(series), resize(), destroy()}.
function igniteTfChart(root, uPlot) {
  const COLOURS = ["#1e88e5", "#fb8c00", "#43a047", "#e53935", "#8e24aa", "#00acc1", "#6d4c41", "#9e9e9e"];
  const GREY = "#808080";
  const MOST_AT_FIRST = 8, FEW_POINTS = 30;
  const choice = {axis: "step", log: false, smooth: 0, hidden: new Set(), known: new Set()};
  let series = null, plots = [], shape = "";

  const controls = document.createElement("div");
  controls.className = "itm-controls";
  const panels = document.createElement("div");
  panels.className = "itm-panels";
  root.append(controls, panels);

  function control(label, element) {
    const box = document.createElement("label");
    box.append(label, element);
    controls.append(box);
    return element;
  }
  const axis = control("over ", document.createElement("select"));
  for (const name of ["step", "epoch", "time"]) axis.add(new Option(name, name));
  axis.title = "what the metrics are drawn over";
  axis.onchange = () => choose(() => { choice.axis = axis.value; rebuild(); });
  const log = control("log ", document.createElement("input"));
  log.type = "checkbox";
  log.title = "logarithmic scale";
  log.onchange = () => choose(() => { choice.log = log.checked; rebuild(); });
  const smooth = control("smooth ", document.createElement("input"));
  Object.assign(smooth, {type: "range", min: 0, max: 0.95, step: 0.05, value: 0, title: "moving average"});
  smooth.oninput = () => choose(() => { choice.smooth = Number(smooth.value); redraw(); });
  const metrics = document.createElement("span");
  metrics.setAttribute("role", "group");
  metrics.setAttribute("aria-label", "metrics");
  controls.append(metrics);

  // The user's choices for a training apply to all its charts in this page, because another chart replaces the first one
  // when the run ends. The first values of a training identify it.
  let isChosen = false;
  const memory = window.igniteTfChoices = window.igniteTfChoices || new Map();
  const training = () => JSON.stringify(series.runs.map((run) =>
    [run.name, run.step[0], Object.entries(run.values).map(([name, values]) => [name, values[0]]).filter(([, value]) => value !== null)]));
  function remember() {
    if (isChosen) memory.set(training(), {...choice, hidden: new Set(choice.hidden), known: new Set(choice.known)});
  }
  function choose(change) {
    isChosen = true;
    change();
    remember();
  }
  function recall() {
    const found = memory.get(training());
    if (!found) return;
    isChosen = true;
    Object.assign(choice, found, {hidden: new Set(found.hidden), known: new Set(found.known)});
    Object.assign(axis, {value: choice.axis});
    Object.assign(log, {checked: choice.log});
    Object.assign(smooth, {value: choice.smooth});
  }

  function smoothed(values) {
    if (!choice.smooth) return values;
    let mean = null;
    return values.map((value) => {
      if (typeof value !== "number") return value;
      mean = mean === null ? value : choice.smooth * mean + (1 - choice.smooth) * value;
      return mean;
    });
  }

  // A validation metric is drawn with the metric that it validates. If there are many metrics, the loss comes first.
  function metricNames() {
    const own = series.metrics.filter((name) => !name.startsWith("val_"));
    const alone = series.metrics.filter((name) => name.startsWith("val_") && !own.includes(name.slice(4)));
    const names = [...own, ...alone];
    return isMany(names) ? names.sort((a, b) => (b === "loss") - (a === "loss")) : names;
  }
  const isMany = (names) => names.length > MOST_AT_FIRST;
  const metricsShown = () => metricNames().filter((name) => !choice.hidden.has(name));

  // The lines of one metric: for each run, the metric and its validation metric.
  function linesOf(metric) {
    const found = [];
    series.runs.forEach((run, number) => {
      for (const name of [metric, "val_" + metric]) {
        if (!(name in run.values)) continue;
        const kind = name === metric ? "" : "validation";
        found.push({
          label: [series.runs.length > 1 ? run.name : "", kind].filter(Boolean).join(" ") || metric,
          x: run[choice.axis], y: run.values[name], notFinite: run.not_finite[name],
          colour: COLOURS[number % COLOURS.length], dashed: kind !== "",
        });
      }
    });
    return found;
  }

  // A value that cannot be drawn makes a gap in the line. A missing value does not: the line connects its neighbours.
  function pointsOf(line) {
    const found = {table: [[], []], drawn: 0, notAbove: 0};
    smoothed(line.y).forEach((value, i) => {
      if (value === null) return;
      const isFinite = typeof value === "number", isDrawn = isFinite && (!choice.log || value > 0);
      found.drawn += isDrawn;
      found.notAbove += isFinite && !isDrawn;
      found.table[0].push(line.x[i]);
      found.table[1].push(isDrawn ? value : null);
    });
    return found;
  }

  function dataOf(points) {
    const EXPAND = 2;  // a gap extends to the neighbouring points of its own line, across points of other lines
    return points.length === 1 ? points[0].table : uPlot.join(points.map((each) => each.table), points.map(() => [EXPAND, EXPAND]));
  }

  const counted = (count, what) => count ? `${count.toLocaleString("en")} ${count === 1 ? "value is" : "values are"} ${what}` : "";
  function leftOut(lines, points) {
    return lines.map((line, i) => {
      const words = [counted(line.notFinite, "not finite"), counted(points[i].notAbove, "not above 0")].filter(Boolean).join(", ");
      return words && lines.length > 1 ? `${line.label}: ${words}` : words;
    }).filter(Boolean).join("; ");
  }
  function whyEmpty(points) {
    if (points.some((each) => each.drawn)) return "";
    return points.some((each) => each.notAbove) ? "no values above 0" : "no finite values";
  }

  // Points without neighbours make no line, so they are always drawn. If there are few points, all are drawn.
  const isFew = (values) => values.filter((value) => typeof value === "number").length < FEW_POINTS;
  function isolated(values) {
    const told = [...values.keys()].filter((i) => values[i] !== undefined);
    const isGap = (i) => i === undefined || values[i] === null;
    return told.filter((i, place) => !isGap(i) && isGap(told[place - 1]) && isGap(told[place + 1]));
  }

  // Formats a number so that it fits beside the axis: 0.001, 12,500, 5e17.
  function short(value) {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value), plain = Number(value.toPrecision(6)).toLocaleString("en", {maximumFractionDigits: 6});
    return (size && (size >= 1e6 || size < 1e-4)) || plain.length > 7 ? Number(value.toPrecision(3)).toExponential().replace("e+", "e") : plain;
  }

  function options(metric, lines, width) {
    const axisStyle = {stroke: GREY, grid: {stroke: "rgba(128,128,128,0.2)"}, ticks: {stroke: "rgba(128,128,128,0.4)"}};
    return {
      title: metric, width, height: 200,
      scales: {x: {time: false}, y: {distr: choice.log ? 3 : 1}},
      cursor: {drag: {x: true, y: true, uni: 20}},
      hooks: {setSelect: [(plot) => { plot.itmZoomed = true; }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => { plot.itmZoomed = false; })]},
      legend: {live: true},
      axes: [{...axisStyle, label: choice.axis === "time" ? "seconds" : choice.axis, labelSize: 18, size: 34}, {...axisStyle, size: 62, values: (_, ticks) => ticks.map(short)}],
      series: [{label: choice.axis === "time" ? "seconds" : choice.axis}, ...lines.map((line) => ({
        label: line.label, stroke: line.colour, width: line.dashed ? 1 : 1.6, dash: line.dashed ? [5, 4] : undefined,
        spanGaps: false, points: {size: 4, show: (plot, number) => isFew(plot.data[number]),
          filter: (plot, number, isShown) => isShown ? null : isolated(plot.data[number])},
        value: (_, value) => value === null || value === undefined ? "" : Number(value).toPrecision(4),
      }))],
    };
  }

  function widthOfPanel() {
    const count = Math.max(metricsShown().length, 1);
    const columns = Math.max(1, Math.min(count, Math.floor((root.clientWidth || 640) / 300)));
    return Math.max(220, Math.floor((root.clientWidth || 640) / columns) - 12);
  }

  const zoomOf = ({scales: {x, y}}) => ({x: {min: x.min, max: x.max}, y: {min: y.min, max: y.max}});
  function zoom(plot, {x, y}) {
    plot.itmZoomed = true;
    plot.setScale("x", x);
    plot.setScale("y", y);
  }

  function element(parent, className) {
    const made = document.createElement("div");
    made.className = className;
    parent.append(made);
    return made;
  }

  function rebuild() {
    plots.forEach((each) => each.plot.destroy());
    panels.replaceChildren();
    plots = metricsShown().map((metric) => {
      const lines = linesOf(metric), points = lines.map(pointsOf), box = element(panels, "");
      const plot = new uPlot(options(metric, lines, widthOfPanel()), dataOf(points), box);
      const made = {metric, plot, empty: element(plot.over, "itm-empty"), remark: element(box, "itm-remark")};
      say(made, lines, points);
      return made;
    });
  }
  function rebuildZoomed() {
    const zooms = new Map(plots.filter(({plot}) => plot.itmZoomed).map(({metric, plot}) => [metric, zoomOf(plot)]));
    rebuild();
    for (const {metric, plot} of plots) if (zooms.has(metric)) zoom(plot, zooms.get(metric));
  }

  function say({empty, remark}, lines, points) {
    empty.textContent = whyEmpty(points);
    remark.textContent = leftOut(lines, points);
  }

  // If the user has zoomed in, new points do not move the view.
  function redraw() {
    for (const each of plots) {
      const {metric, plot} = each, lines = linesOf(metric), points = lines.map(pointsOf);
      say(each, lines, points);
      if (!plot.itmZoomed) { plot.setData(dataOf(points)); continue; }
      const seen = zoomOf(plot);
      plot.setData(dataOf(points), false);
      zoom(plot, seen);
    }
  }

  // New metrics are drawn while there are few, and hidden after that.
  function meetMetrics() {
    for (const name of metricNames().filter((each) => !choice.known.has(each))) {
      choice.known.add(name);
      if (isMany(metricsShown().filter((each) => choice.known.has(each)))) choice.hidden.add(name);
    }
  }

  function showMetrics(names, isShown) {
    choose(() => {
      for (const name of names) choice.hidden[isShown ? "delete" : "add"](name);
      rebuildZoomed();
    });
  }
  function metricBox(name) {
    const box = document.createElement("input"), label = document.createElement("label");
    Object.assign(box, {type: "checkbox", checked: !choice.hidden.has(name), onchange: () => showMetrics([name], box.checked)});
    label.append(box, name);
    return label;
  }
  function allOrNone(label, isShown) {
    const made = document.createElement("button");
    Object.assign(made, {type: "button", textContent: label, className: "itm-button", onclick: () => {
      for (const box of metrics.querySelectorAll("input")) box.checked = isShown;
      showMetrics(metricNames(), isShown);
    }});
    made.setAttribute("aria-label", `draw ${label} of the metrics`);
    return made;
  }
  function offerMetrics() {
    const names = metricNames();
    const buttons = isMany(names) ? [allOrNone("all", true), allOrNone("none", false)] : [];
    metrics.replaceChildren(...buttons, ...(names.length < 2 ? [] : names.map(metricBox)));
  }

  function update(given) {
    const isFirst = !series;
    series = given;
    if (isFirst) recall();
    const newShape = JSON.stringify([series.metrics, series.runs.map((run) => [run.name, Object.keys(run.values)])]);
    if (newShape === shape) redraw();
    else {
      shape = newShape;
      meetMetrics();
      offerMetrics();
      rebuildZoomed();
    }
    remember();
  }

  function resize() {
    const width = widthOfPanel();
    plots.forEach(({plot}) => { if (plot.width !== width) plot.setSize({width, height: 200}); });
  }
  const observer = typeof ResizeObserver === "undefined" ? null : new ResizeObserver(() => series && resize());
  if (observer) observer.observe(root);

  return {update, resize, destroy() { if (observer) observer.disconnect(); plots.forEach((each) => each.plot.destroy()); }};
}
