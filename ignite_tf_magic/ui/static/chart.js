// The chart of a training: metrics over steps, epochs or time. Zoom by dragging, a double click shows all again.
//
// `series` is {runs: [{name, step, epoch, time, values: {metric: [number|null]}}], metrics: [metric]}: one run, or
// several to compare. Needs `uPlot`. Returns {update(series), resize(), destroy()}.
function igniteTfChart(root, uPlot) {
  const COLOURS = ["#1e88e5", "#fb8c00", "#43a047", "#e53935", "#8e24aa", "#00acc1", "#6d4c41", "#9e9e9e"];
  const GREY = "#808080";
  const choice = {axis: "step", log: false, smooth: 0, hidden: new Set()};
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
  axis.onchange = () => { choice.axis = axis.value; rebuild(); };
  const log = control("log ", document.createElement("input"));
  log.type = "checkbox";
  log.title = "logarithmic scale";
  log.onchange = () => { choice.log = log.checked; rebuild(); };
  const smooth = control("smooth ", document.createElement("input"));
  Object.assign(smooth, {type: "range", min: 0, max: 0.95, step: 0.05, value: 0, title: "moving average"});
  smooth.oninput = () => { choice.smooth = Number(smooth.value); redraw(); };
  const metrics = document.createElement("span");
  controls.append(metrics);

  function smoothed(values) {
    if (!choice.smooth) return values;
    let mean = null;
    return values.map((value) => {
      if (value === null) return null;
      mean = mean === null ? value : choice.smooth * mean + (1 - choice.smooth) * value;
      return mean;
    });
  }

  function metricsShown() {
    const own = series.metrics.filter((name) => !name.startsWith("val_"));
    const alone = series.metrics.filter((name) => name.startsWith("val_") && !own.includes(name.slice(4)));
    return [...own, ...alone].filter((name) => !choice.hidden.has(name));
  }

  // The lines of one metric: of each run its own, and that of validation beside it.
  function linesOf(metric) {
    const found = [];
    series.runs.forEach((run, number) => {
      for (const name of [metric, "val_" + metric]) {
        if (!(name in run.values)) continue;
        const kind = name === metric ? "" : "validation";
        found.push({
          label: [series.runs.length > 1 ? run.name : "", kind].filter(Boolean).join(" ") || metric,
          x: run[choice.axis], y: run.values[name], colour: COLOURS[number % COLOURS.length], dashed: kind !== "",
        });
      }
    });
    return found;
  }

  function dataOf(lines) {
    const tables = lines.map((line) => {
      const kept = [[], []];
      const values = smoothed(line.y);
      line.x.forEach((x, i) => {
        if (values[i] !== null && (!choice.log || values[i] > 0)) { kept[0].push(x); kept[1].push(values[i]); }
      });
      return kept;
    });
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }

  // A number that fits beside the axis: 0.001, 12,500, 5e17.
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
        spanGaps: true, points: {show: line.x.length < 30, size: 4},
        value: (_, value) => value === null || value === undefined ? "" : Number(value).toPrecision(4),
      }))],
    };
  }

  function widthOfPanel() {
    const count = Math.max(metricsShown().length, 1);
    const columns = Math.max(1, Math.min(count, Math.floor((root.clientWidth || 640) / 300)));
    return Math.max(220, Math.floor((root.clientWidth || 640) / columns) - 12);
  }

  function rebuild() {
    plots.forEach((each) => each.plot.destroy());
    panels.replaceChildren();
    plots = metricsShown().map((metric) => {
      const lines = linesOf(metric);
      const box = document.createElement("div");
      panels.append(box);
      return {metric, plot: new uPlot(options(metric, lines, widthOfPanel()), dataOf(lines), box)};
    });
  }

  // Where somebody has zoomed in, the new points come without moving what they look at.
  function redraw() {
    for (const {metric, plot} of plots) {
      const data = dataOf(linesOf(metric));
      if (!plot.itmZoomed) { plot.setData(data); continue; }
      const {x, y} = plot.scales, seen = {x: {min: x.min, max: x.max}, y: {min: y.min, max: y.max}};
      plot.setData(data, false);
      plot.setScale("x", seen.x);
      plot.setScale("y", seen.y);
    }
  }

  function chooseMetrics() {
    metrics.replaceChildren();
    const names = series.metrics.filter((name) => !name.startsWith("val_") || !series.metrics.includes(name.slice(4)));
    if (names.length < 2) return;
    for (const name of names) {
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = !choice.hidden.has(name);
      box.onchange = () => { choice.hidden[box.checked ? "delete" : "add"](name); rebuild(); };
      const label = document.createElement("label");
      label.append(box, name);
      metrics.append(label);
    }
  }

  function update(given) {
    series = given;
    const newShape = JSON.stringify([series.metrics, series.runs.map((run) => [run.name, Object.keys(run.values)])]);
    if (newShape === shape) return redraw();
    shape = newShape;
    chooseMetrics();
    rebuild();
  }

  function resize() {
    const width = widthOfPanel();
    plots.forEach(({plot}) => { if (plot.width !== width) plot.setSize({width, height: 200}); });
  }
  const observer = typeof ResizeObserver === "undefined" ? null : new ResizeObserver(() => series && resize());
  if (observer) observer.observe(root);

  return {update, resize, destroy() { if (observer) observer.disconnect(); plots.forEach((each) => each.plot.destroy()); }};
}
