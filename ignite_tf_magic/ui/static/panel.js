// The panel: runs, the cluster's nodes, caches. `source` is {seen(), told(), onChange(call), act(action, about, note), lost(),
// insert(code)}: a widget's model in a notebook, the server in JupyterLab's sidebar. `lost` returns why the connection is
// lost, or ""; it may be absent. `insert` is absent if cells cannot be written.
function igniteTfPanel(root, source) {
  root.classList.add("itm-panel");
  const make = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made && name !== "list") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };
  // When a row is drawn again, its buttons stay the same elements, so that a click does not miss a removed button.
  const kept = new Map();
  let used = new Set();
  const button = (key, attributes) => {
    if (!kept.has(key)) kept.set(key, make("button", {type: "button", className: "itm-button"}));
    used.add(key);
    const {label, ...others} = attributes;
    const element = Object.assign(kept.get(key), others);
    if (label) element.setAttribute("aria-label", label);
    return element;
  };
  const state = {view: "runs", search: "", ended: false, chosen: null, asked: null, seenLive: new Set(), said: "", asker: null};

  // An answer stays in the view that requested it, until the next action.
  function act(action, about, words) {
    Object.assign(state, {said: "", closed: null, asker: state.view, asking: document.activeElement});
    source.act(action, about, words);
  }
  function say(words) {
    Object.assign(state, {said: words, asker: state.view});
    draw();
  }

  const tabs = make("div", {className: "itm-tabs", role: "tablist", "aria-label": "views"});
  const views = ["runs", "cluster", "caches"];
  const tabOf = {};
  for (const name of views) {
    tabOf[name] = make("button", {type: "button", className: "itm-button", role: "tab", textContent: name,
      onclick: () => { state.view = name; draw(); }});
    tabs.append(tabOf[name]);
  }
  tabs.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    state.view = views[(views.indexOf(state.view) + step + views.length) % views.length];
    draw();
    tabOf[state.view].focus();
  });
  const search = make("input", {type: "search", placeholder: "search", "aria-label": "search runs and caches",
    oninput: () => { state.search = search.value.toLowerCase(); draw(); }});
  const ended = make("input", {type: "checkbox", onchange: () => { state.ended = ended.checked; draw(); }});
  const withEnded = make("label", {}, ended, "ended runs");
  const bar = make("div", {className: "itm-controls"}, tabs, search, withEnded);
  const trouble = make("div", {className: "itm-note", role: "alert"});
  const body = make("div", {className: "itm-body"});
  const note = make("div", {className: "itm-note", role: "status", "aria-live": "polite"});
  const detail = make("pre", {className: "itm-detail", tabIndex: 0});
  const close = make("button", {type: "button", className: "itm-button itm-close", textContent: "\u00d7", title: "close",
    "aria-label": "close the answer", onclick: closeAnswer});
  const answer = make("div", {className: "itm-answer", hidden: true}, close, detail);
  // A fieldset, because it can disable all its buttons at once.
  const actions = make("fieldset", {className: "itm-actions"}, body);
  root.append(bar, trouble, actions, note, answer);

  // Closes the answer at once, even if the kernel is busy. Focus returns to the element that requested it.
  function closeAnswer() {
    const {asking} = state, place = root.contains(asking) ? asking : tabOf[state.view];
    if (!actions.disabled) act("close", "");
    state.closed = source.told();
    draw();
    place.focus({preventScroll: true});
  }

  function spark(values, colour, label) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 80 20");
    svg.setAttribute("class", "itm-spark");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    if (values.length > 1) {
      const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
      const points = values.map((v, i) => `${(80 * i / (values.length - 1)).toFixed(1)},${(18 - 16 * (v - low) / span).toFixed(1)}`);
      const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      line.setAttribute("points", points.join(" "));
      line.setAttribute("style", `fill:none;stroke:${colour};stroke-width:1.5`);
      svg.append(line);
    }
    return svg;
  }

  // A second click within 4 s confirms.
  function stopButton(run) {
    const isAsked = state.asked === run.id;
    return button(`stop ${run.id}`, {textContent: isAsked ? "Confirm" : run.stop,
      disabled: !run.can_stop, label: `${isAsked ? "confirm: stop" : run.stop} run ${run.id}`, onclick: () => {
        if (state.asked === run.id) { state.asked = null; act("stop", run.id); } else {
          state.asked = run.id;
          setTimeout(() => { if (state.asked === run.id) { state.asked = null; draw(); } }, 4000);
        }
        draw();
      }});
  }

  function runRow(run) {
    const dot = make("span", {textContent: "\u25cf ", style: `color:${run.colour}`, "aria-hidden": "true"});
    const open = button(`open ${run.id}`, {className: "itm-link", textContent: run.id, onclick: () => {
        state.chosen = state.chosen === run.id ? null : run.id;
        if (state.chosen) act("describe", run.id); else act("close", "");
        draw();
      }});
    open.setAttribute("aria-expanded", String(state.chosen === run.id));
    const facts = [run.cache, `${run.workers} on ${run.hosts.join(", ")}`, run.duration,
      run.restarts ? `${run.restarts} restart${run.restarts === 1 ? "" : "s"}` : "", ...run.tags.map((tag) => "#" + tag)].filter(Boolean).join(" \u00b7 ");
    const words = make("div", {className: "itm-words", textContent: run.live ? run.words : run.state_text});
    const share = run.live && run.share !== null ? make("div", {className: "itm-bar"}, make("div", {style: `width:${100 * run.share}%`})) : "";
    const row = make("li", {className: "itm-row", "data-run": run.id},
      make("div", {className: "itm-main"}, dot, open, make("div", {className: "itm-facts", textContent: facts}), words, share),
      run.spark.length ? make("div", {className: "itm-told"}, spark(run.spark, run.colour, `${run.metric} over time, last ${run.last}`),
        make("div", {className: "itm-facts", textContent: `${run.metric} ${run.last}`})) : "",
      make("div", {className: "itm-buttons"}, stopButton(run)));
    if (state.chosen === run.id) {
      const more = make("div", {className: "itm-buttons"});
      const asking = (textContent, action, title) =>
        button(`${action} ${run.id}`, {textContent, title, onclick: () => act(action, run.id)});
      more.append(asking("Logs", "logs", "the last lines of its output"), asking("TensorBoard", "tensorboard", "open a TensorBoard of it"));
      if (run.can_resume) more.append(writing(run.mark, `%ignite_tf resume ${run.mark}`, "Resume"));
      more.append(writing(run.mark, `%ignite_tf attach ${run.mark}`, "Attach"));
      row.append(more, measures(run));
    }
    return row;
  }

  // How busy the workers of a live run are and were.
  function measures(run) {
    if (!run.measures.length) return "";
    const cell = (values, unit, label) => make("td", {}, ...(values.length ? [spark(values, run.colour, label), ` ${values.at(-1)}${unit}`] : []));
    const hasGpu = run.measures.some((each) => each.gpu.length);
    const head = ["worker", "cores busy", ...(hasGpu ? ["GPU busy"] : []), "memory"].map((name) => make("th", {textContent: name, scope: "col"}));
    const rows = run.measures.map((each) => make("tr", {}, make("th", {textContent: each.task, scope: "row"}),
      cell(each.cpu, "", `cores that ${each.task} kept busy, over time`),
      ...(hasGpu ? [cell(each.gpu.map((share) => Math.round(100 * share)), " %", `how busy the GPUs of ${each.task} were, over time`)] : []),
      make("td", {textContent: each.memory})));
    const table = make("table", {className: "itm-table", "aria-label": `workers of ${run.id}`}, make("tr", {}, ...head), ...rows);
    const others = run.workers - run.measures.length;
    if (run.measures.length > 1 && others > 0) table.append(make("caption", {textContent: `and ${others} more`, style: "caption-side:bottom"}));
    return table;
  }

  // A button for something that only a cell can do: it writes a cell, or copies the code.
  // Names come from other users. A name in which IPython could find more than a name is not put into a cell.
  const isPlain = (name) => /^[A-Za-z0-9][\w.-]*$/.test(name);
  function writing(name, code, label) {
    if (!isPlain(name)) return "";
    return button(`${label} ${name}`, {textContent: label,
      title: source.insert ? "writes a cell" : "copies: " + code, onclick: async () => {
        if (source.insert && source.insert(code)) return;  // otherwise no notebook is open
        try { await navigator.clipboard.writeText(code); say("copied: " + code); }
        catch { say(code); }
      }});
  }

  function runs(seen) {
    const fits = (run) => [run.id, run.cache, run.state, ...run.tags, ...run.hosts].join(" ").toLowerCase().includes(state.search);
    // Runs that were live while the panel was open stay in their place after they end.
    seen.runs.filter((run) => run.live).forEach((run) => state.seenLive.add(run.id));
    const live = seen.runs.filter((run) => state.seenLive.has(run.id) && fits(run));
    const others = seen.runs.filter((run) => !state.seenLive.has(run.id) && fits(run));
    const list = make("ul", {className: "itm-list", "aria-label": "runs"}, ...live.map(runRow));
    if (state.ended) list.append(...others.map(runRow));
    const numTold = seen.runs.filter((run) => !run.live).length;
    const numCut = seen.num_ended - numTold;
    const cut = numCut && (state.ended || state.search) ? make("div", {className: "itm-facts",
      textContent: `The newest ${numTold} of ${seen.num_ended} that have ended are here. All: %ignite_tf ps --all`}) : "";
    const isShown = live.length || (state.ended && others.length);
    return [list, isShown ? "" : make("div", {className: "itm-facts"}, whyNoRuns(seen, others.length + (state.search ? 0 : numCut))), cut];
  }
  function whyNoRuns(seen, numOthers) {
    if (state.search && seen.runs.length && !numOthers) return "nothing matches the search";
    const why = state.search && seen.runs.some((run) => state.seenLive.has(run.id)) ? "No live run matches the search." :
      "No run is live. A cell starts one: %%ignite_tf start CACHE";
    return numOthers ? `${why} \u00b7 ${numOthers} ${numOthers === 1 ? "has" : "have"} ended` : why;
  }

  function cluster(seen) {
    if (!seen.cluster) return [make("div", {className: "itm-facts", textContent: "No cluster yet: Ignite nodes are started here when they are needed."})];
    // Group the nodes by host.
    const hosts = new Map();
    for (const node of seen.nodes) hosts.set(node.host, [...(hosts.get(node.host) || []), node]);
    const heading = (textContent, attributes = {}) => make("th", {textContent, scope: "col", ...attributes});
    const name = (host) => host || "unknown host";
    const rows = [...hosts].flatMap(([host, nodes]) => nodes.map((node, i) => make("tr", {},
      ...(i ? [] : [make("th", {textContent: name(host), scope: "rowgroup", rowSpan: nodes.length})]),
      make("td", {textContent: node.name}), make("td", {textContent: node.memory}),
      make("td", {}, node.share === null ? "" : make("div", {className: "itm-bar"}, make("div", {style: `width:${100 * node.share}%`}))))));
    const head = make("tr", {}, ...["host", "node", "memory for data", ""].map((each) => heading(each)));
    const nodes = make("table", {className: "itm-table", "aria-label": "nodes"}, head, ...rows);
    const most = Math.max(1, ...seen.caches.flatMap((cache) => Object.values(cache.primaries)));
    const hostHeads = make("tr", {}, heading("partitions of", {rowSpan: 2}),
      ...[...hosts].map(([host, own]) => heading(name(host), {scope: "colgroup", colSpan: own.length, className: "itm-host"})));
    const nodeHeads = make("tr", {}, ...[...hosts.values()].flat().map((node) => heading(node.name)));
    const cells = (cache) => [...hosts.values()].flatMap((own) => own.map((node, i) => {
      const count = cache.primaries[node.id] || 0;
      return make("td", {textContent: count || "", className: i ? "" : "itm-host",
        style: `text-align:right;background:rgba(30,136,229,${0.6 * count / most})`});
    }));
    const heat = make("table", {className: "itm-table", "aria-label": "partitions by host and node"}, hostHeads, nodeHeads,
      ...seen.caches.filter((cache) => Object.keys(cache.primaries).length).map((cache) => make("tr", {}, make("th", {textContent: cache.name, scope: "row"}), ...cells(cache))));
    return [nodes, heat];
  }

  function caches(seen) {
    const rows = seen.caches.filter((cache) => cache.name.toLowerCase().includes(state.search)).map((cache) => make("li", {className: "itm-row"},
      make("div", {className: "itm-main"}, make("b", {textContent: cache.name}),
        make("div", {className: "itm-facts", textContent: `${cache.rows.toLocaleString("en")} rows \u00b7 backups: ${cache.backups}${cache.tables.length ? " \u00b7 SQL: " + cache.tables.join(", ") : ""}`})),
      make("div", {className: "itm-buttons"}, ...["columns", "sample", "profile"].map((action) => button(
        `${action} ${cache.name}`, {textContent: action, label: `${action} of ${cache.name}`, onclick: () => act(action, cache.name)})),
        button(`train ${cache.name}`, {textContent: "train on it", label: `train on ${cache.name}`,
          title: "asks for the column to predict, and writes a cell", onclick: () => act("form", cache.name, `looking at ${cache.name} ...`)})),
      trainingForm(cache.name)));
    const why = seen.caches.length ? "nothing matches the search" : "No caches. Load one: %ignite_tf load DIGITS digits";
    return [make("ul", {className: "itm-list", "aria-label": "caches"}, ...rows), rows.length ? "" :
      make("div", {className: "itm-facts", textContent: why})];
  }

  // The form that asks which column of a cache to learn. The choices come from the cache.
  function trainingForm(cache) {
    const form = source.told().form;
    if (!form || form.cache !== cache) return "";
    if (!form.labels.length) return make("div", {className: "itm-note", textContent: "no column to predict (a single number or text in each row)"});
    const key = JSON.stringify(form);
    if (state.form !== key) Object.assign(state, {form: key, formElement: makeForm(cache, form.labels)});
    return state.formElement;
  }
  function makeForm(cache, labels) {
    const label = make("select", {}, ...labels.map((name) => new Option(name, name)));
    const workers = make("input", {type: "number", min: 1, max: 64, value: 1});
    const said = () => ({cache, label: label.value, workers: Math.max(1, Math.round(Number(workers.value)) || 1)});
    return make("div", {className: "itm-controls", role: "group", "aria-label": `train on ${cache}`},
      make("label", {}, "predict ", label), make("label", {}, "workers ", workers),
      make("button", {type: "button", className: "itm-button", textContent: source.insert ? "write the cell" : "show the cell",
        onclick: () => act("draft", JSON.stringify(said()), `looking at ${label.value} of ${cache} ...`)}));
  }

  // Nothing is drawn while a pointer is down, so nothing moves under it. Focus stays where it was.
  let isHeld = false, isDue = false;
  root.addEventListener("pointerdown", () => { isHeld = true; });
  for (const name of ["pointerup", "pointercancel"]) {
    window.addEventListener(name, () => setTimeout(() => { isHeld = false; if (isDue) draw(); }));
  }
  function draw() {
    isDue = isHeld;
    if (isHeld) return;
    const seen = source.seen();
    if (!seen || !seen.runs) return;
    for (const name of views) {
      tabOf[name].setAttribute("aria-selected", String(name === state.view));
      tabOf[name].tabIndex = name === state.view ? 0 : -1;
    }
    search.hidden = state.view === "cluster";
    withEnded.hidden = state.view !== "runs";
    const lost = source.lost ? source.lost() : "";
    actions.disabled = Boolean(lost);
    trouble.textContent = lost || [seen.trouble ? "the cluster does not answer: " + seen.trouble : "", ...seen.warnings].filter(Boolean).join("\n");
    const told = source.told();
    drawBody(seen, told.form);
    // An answer is an event: its cell is inserted once, however often the answer is drawn.
    if (told.cell && told !== state.written) {
      state.written = told;
      state.isInserted = Boolean(source.insert) && source.insert(told.cell);
    }
    drawAnswer(told);
  }
  function drawAnswer(told) {
    const isHere = !state.asker || state.asker === state.view, isTold = isHere && told !== state.closed;
    const forCell = state.isInserted ? "written: a cell below the current one" : "copy this into a cell:";
    note.textContent = isHere && state.said || isTold && (told.note || (told.cell ? forCell : "")) || "";
    if (isTold && told.url && !state.said) note.append(" ", make("a", {href: told.url, target: "_blank", rel: "noopener", textContent: told.url}));
    const text = told.detail || (state.isInserted ? "" : told.cell) || "";
    answer.hidden = !text || !isTold;
    if (detail.textContent !== text) detail.textContent = text;
  }
  // Draws only after a change, and never while a form field has focus, because an open list would close.
  function drawBody(seen, form) {
    const focused = document.activeElement;
    const drawn = JSON.stringify([seen, form, state.view, state.search, state.ended, state.chosen, state.asked]);
    if (drawn === state.drawn || (body.contains(focused) && focused.matches("select, input"))) return;
    state.drawn = drawn;
    used = new Set();
    body.replaceChildren(...{runs, cluster, caches}[state.view](seen));
    for (const key of kept.keys()) if (!used.has(key)) kept.delete(key);
    if (focused !== document.activeElement && body.contains(focused)) focused.focus({preventScroll: true});
  }
  source.onChange(draw);
  draw();
}
