/* Draws the charts in place of their pictures, in the page's colours and width. */
(function () {
  "use strict";

  var figures = JSON.parse(document.getElementById("figures").textContent);
  var drawn = {};
  var focus = "";
  var logSteps = false;
  var turn = 0;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function palette(prefix, count) {
    var found = [];
    for (var index = 0; index < count; index++) found.push(colour(prefix + index));
    return found;
  }

  function rows(table) {
    if (Array.isArray(table)) return table.map(function (row) { return Object.assign({}, row); });
    var names = Object.keys(table);
    var columns = names.map(function (name) {
      var column = table[name];
      return Array.isArray(column) ? column : column.codes.map(function (code) { return column.names[code]; });
    });
    return columns[0].map(function (_, index) {
      var row = {};
      names.forEach(function (name, position) { row[name] = columns[position][index]; });
      return row;
    });
  }

  function config(figure) {
    var ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
    var parts = figure === "parts" || figure === "memory";
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      range: { category: parts ? palette("--p", 6) : palette("--c", 7) },
      view: { stroke: null },
      axis: {
        labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line,
        labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, labelOverlap: "greedy", labelSeparation: 8
      },
      axisY: { minExtent: figure === "training" ? 56 : 0 },
      legend: { labelColor: ink, titleColor: soft, labelFontSize: 12 },
      line: { strokeJoin: "round" },
      style: { mark: { stroke: ink }, segment: { stroke: colour("--card") } }
    };
  }

  /* Text only: what it shows comes from the job. */
  var tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.appendChild(tip);

  function tooltip(handler, event, item, value) {
    tip.textContent = "";
    if (value === null || value === undefined || value === "") {
      tip.hidden = true;
      return;
    }
    var told = typeof value === "object" ? value : { "": value };
    Object.keys(told).forEach(function (name) {
      var line = document.createElement("div");
      var key = document.createElement("span");
      key.textContent = name;
      line.appendChild(key);
      line.appendChild(document.createTextNode(String(told[name])));
      tip.appendChild(line);
    });
    tip.hidden = false;
    var x = event.clientX + 14, y = event.clientY + 14;
    if (x + tip.offsetWidth > window.innerWidth - 8) x = Math.max(8, event.clientX - tip.offsetWidth - 14);
    if (y + tip.offsetHeight > window.innerHeight - 8) y = Math.max(8, event.clientY - tip.offsetHeight - 14);
    tip.style.left = x + "px";
    tip.style.top = y + "px";
  }

  function onSteps(spec) {
    if (Array.isArray(spec)) {
      spec.forEach(onSteps);
    } else if (spec && typeof spec === "object") {
      if (spec.field === "step" && spec.type === "quantitative" && (spec.axis || spec.scale)) {
        spec.scale = Object.assign({}, spec.scale, { type: "symlog", constant: 1 });
        spec.axis = Object.assign({}, spec.axis, {
          values: [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6]
        });
      }
      Object.keys(spec).forEach(function (key) { if (key !== "datasets") onSteps(spec[key]); });
    }
  }

  function draw(name) {
    var place = document.querySelector('[data-figure="' + name + '"]');
    if (!place) return Promise.resolve();
    var live = place.querySelector(".live");
    var width = Math.floor(place.clientWidth);
    if (!width) return Promise.resolve();
    var figure = figures[name];
    var spec = JSON.parse(JSON.stringify(figure.spec));
    if (logSteps) onSteps(spec);
    spec.autosize = { type: "fit-x", contains: "padding" };
    if (spec.vconcat) {
      delete spec.autosize;
      spec.vconcat.forEach(function (view) { view.width = Math.max(120, width - 84); });
    } else {
      spec.width = width;
    }
    spec.datasets = {};
    Object.keys(figure.data).forEach(function (table) { spec.datasets[table] = rows(figure.data[table]); });
    if (width < 460) narrow(spec);
    var mine = ++turn;
    var box = document.createElement("div");
    return window.vegaEmbed(box, spec, {
      ast: true, actions: false, defaultStyle: false, renderer: name === "training" ? "canvas" : "svg",
      config: config(name), tooltip: tooltip, logLevel: 1, loader: { load: refuse }
    }).then(function (result) {
      if (drawn[name] && drawn[name].turn > mine) { result.finalize(); return; }
      if (drawn[name]) drawn[name].result.finalize();
      drawn[name] = { result: result, turn: mine, width: width };
      live.textContent = "";
      live.appendChild(box);
      place.classList.add("drawn");
      if (name === "training" && focus) setFocus(focus);
    });
  }

  function refuse() { return Promise.reject(new Error("this page fetches nothing")); }

  /* On a phone labels are short, and legends stand below one another. */
  function narrow(spec) {
    if (Array.isArray(spec)) {
      spec.forEach(narrow);
    } else if (spec && typeof spec === "object") {
      if (spec.legend && spec.legend.columns) {
        spec.legend.columns = 1;
      }
      if (spec.labelLimit === 220) spec.labelLimit = 120;
      Object.keys(spec).forEach(function (key) { if (key !== "datasets") narrow(spec[key]); });
    }
  }

  function drawAll() {
    return Promise.all(Object.keys(figures).map(function (name) {
      return draw(name).catch(function (error) {
        document.querySelector('[data-figure="' + name + '"]').classList.add("failed");
        console.error("chart " + name + ": " + error.message);
      });
    })).then(function () { document.documentElement.setAttribute("data-ready", "yes"); });
  }

  function setFocus(label) {
    focus = label;
    if (drawn.training) drawn.training.result.view.signal("focus", label).runAsync();
    document.querySelectorAll(".legend [data-engine]").forEach(function (button) {
      button.setAttribute("aria-pressed", String(button.getAttribute("data-engine") === label));
    });
  }

  document.querySelectorAll(".legend [data-engine]").forEach(function (button) {
    button.addEventListener("click", function () {
      var label = button.getAttribute("data-engine");
      setFocus(label === focus ? "" : label);
    });
  });

  var toggle = document.getElementById("log-steps");
  if (toggle) {
    toggle.addEventListener("click", function () {
      logSteps = !logSteps;
      toggle.setAttribute("aria-pressed", String(logSteps));
      draw("training");
    });
  }

  document.querySelectorAll("a[href^='#']").forEach(function (link) {
    link.addEventListener("click", function () { open(link.getAttribute("href").slice(1)); });
  });
  function open(id) {
    var target = document.getElementById(id);
    if (target && target.tagName === "DETAILS") target.open = true;
  }
  if (location.hash) open(decodeURIComponent(location.hash.slice(1)));

  var timer = 0;
  window.addEventListener("resize", function () {
    clearTimeout(timer);
    timer = setTimeout(function () {
      Object.keys(figures).forEach(function (name) {
        var place = document.querySelector('[data-figure="' + name + '"]');
        if (place && (!drawn[name] || drawn[name].width !== Math.floor(place.clientWidth))) draw(name);
      });
    }, 150);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.classList.add("scripted");
  drawAll();
})();
