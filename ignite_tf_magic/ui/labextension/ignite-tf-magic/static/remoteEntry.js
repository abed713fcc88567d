// The panel in JupyterLab's sidebar, with data from the server. This is a federated module like those that webpack makes,
// small enough to write by hand. JupyterLab calls `init` with the packages that it shares, then `get` for the plugin.
(() => {
  const NAME = "ignite-tf-magic";
  let shared = {};

  async function load(name) {
    const versions = shared[name] || {};
    const found = Object.values(versions)[0];
    return found ? (await found.get())() : null;
  }

  const config = () => JSON.parse(document.getElementById("jupyter-config-data").textContent);
  const url = (path) => config().baseUrl.replace(/\/?$/, "/") + "ignite-tf/" + path;
  function headers() {
    const found = {"Content-Type": "application/json"};
    const xsrf = document.cookie.match(/\b_xsrf=([^;]*)/);
    if (xsrf) found["X-XSRFToken"] = xsrf[1];
    if (config().token) found.Authorization = "token " + config().token;
    return found;
  }

  async function show(node, insert, isVisible) {
    let seen = {}, told = {}, draw = () => {}, isLooking = false;
    async function look() {
      if (isLooking) return;
      isLooking = true;
      try {
        const answer = await fetch(url("panel"), {headers: headers(), credentials: "same-origin"});
        seen = answer.ok ? await answer.json() : {...seen, runs: seen.runs || [], warnings: [], trouble: `the server answers ${answer.status}`};
      } catch (error) {
        seen = {...seen, runs: seen.runs || [], warnings: [], trouble: String(error)};
      } finally {
        isLooking = false;
      }
      draw();
    }
    async function act(action, about, note) {
      const form = action === "draft" ? {form: told.form} : {};  // the form stays open for another draft
      told = {...form, note: action === "close" ? "" : note || `${action} ${about} ...`};
      draw();
      const answer = await fetch(url("act"), {method: "POST", headers: headers(), credentials: "same-origin", body: JSON.stringify({action, about})});
      told = answer.ok ? {...form, ...await answer.json()} : {...form, note: `the server answers ${answer.status}`};
      await look();
    }
    const {igniteTfPanel} = await import(/* webpackIgnore: true */ url("panel.js"));
    const style = document.createElement("link");
    Object.assign(style, {rel: "stylesheet", href: url("panel.css")});
    document.head.append(style);
    await look();
    igniteTfPanel(node, {seen: () => seen, told: () => told, onChange: (call) => { draw = call; }, act, insert});
    setInterval(() => { if (isVisible()) look(); }, 2000);
  }

  async function extension() {
    const {Widget} = await load("@lumino/widgets");
    const notebook = await load("@jupyterlab/notebook");
    return {
      id: NAME + ":panel",
      autoStart: true,
      optional: notebook ? [notebook.INotebookTracker] : [],
      activate: (app, tracker) => {
        const widget = new Widget();
        widget.id = NAME;
        widget.title.label = "Ignite";
        widget.title.caption = "Runs, nodes and caches of ignite_tf_magic";
        widget.addClass("itm-sidebar");
        Object.assign(widget.node.style, {overflow: "auto", padding: "8px", background: "var(--jp-layout-color1)"});
        app.shell.add(widget, "left", {rank: 900});
        const insert = tracker && ((code) => {
          const current = tracker.currentWidget;
          if (!current) return false;
          notebook.NotebookActions.insertBelow(current.content);
          current.content.activeCell.model.sharedModel.setSource(code);
          current.content.activate();
          return true;
        });
        app.restored.then(() => show(widget.node, insert, () => widget.isVisible));
        app.commands.addCommand(NAME + ":show", {label: "Ignite: show runs, nodes and caches", execute: () => app.shell.activateById(NAME)});
      },
    };
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: (scope) => { shared = scope; },
    get: async (module) => {
      if (module !== "./extension") throw new Error(`${NAME} has no module ${module}`);
      const plugin = await extension();
      return () => ({__esModule: true, default: plugin});
    },
  };
})();
