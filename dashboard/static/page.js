// Keeps the page live: takes each update from the stream and changes only what is different, so that focus, selection and
// what was unfolded stay. Numbers arrive as text and are never made numbers of here.
"use strict";

(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("state");
  const say = document.getElementById("say");
  const SILENT_AFTER_MS = 8000; // an update comes every second; a snapshot that fails takes up to six
  let heard = Date.now();

  const showState = (name, text) => {
    if (state.dataset.state !== name) state.dataset.state = name;
    if (state.textContent !== text) state.textContent = text;
  };

  // Announced only when the headline changes: a number a second would be noise.
  const announce = () => {
    const text = document.getElementById("headline")?.textContent ?? "";
    if (say.textContent !== text) say.textContent = text;
  };

  const keep = {
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
    beforeNodeRemoved: (node) => !(node.parentElement?.closest("[data-plot]")),
  };

  const show = (html) => {
    Idiomorph.morph(live, html, { morphStyle: "innerHTML", callbacks: keep });
    const update = document.getElementById("update");
    const troubled = document.getElementById("trouble") !== null;
    showState(troubled ? "lost" : "live", troubled ? "not up to date" : `live, ${update?.dataset.at ?? ""}`);
    charts.all();
    announce();
  };

  const lost = () => {
    showState("lost", "connection lost, trying again");
    document.getElementById("update")?.classList.add("stale");
  };

  const connect = () => {
    const stream = new EventSource(live.dataset.stream);
    stream.addEventListener("update", (event) => { heard = Date.now(); show(event.data); });
    stream.addEventListener("error", () => {
      lost();
      // The browser tries again by itself, except after an answer that is no stream.
      if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    });
    addEventListener("pagehide", () => stream.close());
  };

  // Arrow keys walk through the rows, left goes up a level; Tab and Enter work as everywhere.
  const walk = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const rows = [...document.querySelectorAll(".parts tbody a")];
    const at = rows.indexOf(document.activeElement);
    const here = at >= 0 || document.activeElement === document.getElementById("level");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && here && rows[at + step]) {
      rows[at + step].focus();
      event.preventDefault();
    } else if (event.key === "ArrowRight" && at >= 0) {
      rows[at].click();
    } else if (event.key === "ArrowLeft" && here) {
      document.querySelector("[data-up]")?.click();
    }
  };

  document.addEventListener("keydown", walk);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  setInterval(() => { if (Date.now() - heard > SILENT_AFTER_MS) lost(); }, 1000);
  if (location.hash === "#level") document.getElementById("level")?.focus({ preventScroll: true });
  announce();
  charts.all();
  connect();
})();
