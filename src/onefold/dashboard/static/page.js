// Updates the page from the stream, and changes only elements that differ, so that focus, selection and open sections
// remain. Numbers arrive as text, and the script never parses them.
"use strict";

(() => {
  const live = document.getElementById("live");
  const say = document.getElementById("say");

  // Announce only a changed headline: a number each second would be noise for screen readers.
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
    stream.tell(document.getElementById("trouble") !== null, document.getElementById("update")?.dataset.at ?? "");
    charts.all();
    announce();
  };

  const lost = () => document.getElementById("update")?.classList.add("stale");

  // Arrow keys move through the rows of a panel, and the left arrow moves up a level. Tab and Enter work as usual.
  const walk = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const panel = document.activeElement.closest(".panel");
    if (!panel) return;
    const rows = [...panel.querySelectorAll(".parts tbody a")];
    const at = rows.indexOf(document.activeElement);
    if (at < 0 && document.activeElement !== panel) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && rows[at + step]) {
      rows[at + step].focus();
      event.preventDefault();
    } else if (event.key === "ArrowRight" && at >= 0) {
      rows[at].click();
    } else if (event.key === "ArrowLeft") {
      panel.querySelector("[data-up]")?.click();
    }
  };

  document.addEventListener("keydown", walk);
  document.getElementById(location.hash.slice(1))?.closest(".panel")?.focus({ preventScroll: true });
  announce();
  charts.all();
  stream.open(live.dataset.stream, show, lost);
})();
