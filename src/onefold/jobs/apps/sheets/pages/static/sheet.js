// Updates the cells of a sheet live, and moves the selection by keyboard. An update replaces and briefly marks only changed
// cells. Values arrive as text and are never converted into numbers.
"use strict";

(() => {
  const sheet = document.getElementById("sheet");
  const table = document.getElementById("cells");
  const box = document.getElementById("cell");
  const line = document.getElementById("content");
  const heads = [...table.tHead.rows[0].cells];
  const quiet = matchMedia("(prefers-reduced-motion: reduce)");
  const OURS = new Set(["tabindex", "aria-selected", "data-chosen", "data-changed"]); // attributes set only by this script
  const WALKED = "#chosen"; // the fragment after keyboard navigation; no element has this id, so the browser moves no focus
  let at = [0, 0]; // the selected cell: its row in the body, and its place in the row

  const cellAt = ([row, place]) => table.tBodies[0].rows[row]?.cells[place];
  const chosen = () => cellAt(at);
  const nameOf = (cell) => heads[cell.cellIndex].textContent + cell.parentElement.cells[0].textContent;
  const contentOf = (cell) => cell.dataset.content ?? cell.textContent;

  const tell = () => {
    const cell = chosen();
    if (document.activeElement !== box) box.value = nameOf(cell);
    // The page's initial content is complete, but the content of a cell may be cut.
    if (line.dataset.of !== nameOf(cell) || !("cut" in cell.dataset)) line.textContent = contentOf(cell);
    line.dataset.of = nameOf(cell);
  };

  const mark = (cell, on) => {
    cell.tabIndex = on ? 0 : -1;
    cell.toggleAttribute("data-chosen", on);
    cell.setAttribute("aria-selected", on);
    for (const head of [heads[cell.cellIndex], cell.parentElement.cells[0]]) head.toggleAttribute("data-chosen", on);
  };

  const choose = (cell, focus) => {
    mark(chosen(), false);
    at = [cell.parentElement.sectionRowIndex, cell.cellIndex];
    mark(cell, true);
    tell();
    if (focus) cell.focus();
  };

  // Beyond the edge is an adjacent window of the sheet, with its own address.
  const leave = (way, name) => {
    const link = document.querySelector(`[data-go="${way}"]`);
    if (!link) return;
    const address = new URL(link.href);
    if (name) address.searchParams.set("cell", name);
    address.hash = WALKED;
    location.assign(address);
  };

  const neighbour = (name, down, right) => {
    const [, letters, row] = /^([A-Z]+)(\d+)$/.exec(name);
    let number = [...letters].reduce((sum, letter) => sum * 26 + letter.charCodeAt(0) - 64, 0) + right;
    let column = "";
    for (; number > 0; number = Math.floor((number - 1) / 26)) column = String.fromCharCode(65 + ((number - 1) % 26)) + column;
    return `${column}${Number(row) + down}`;
  };

  const WAYS = {
    ArrowDown: [1, 0, "down"], ArrowUp: [-1, 0, "up"], ArrowRight: [0, 1, "right"], ArrowLeft: [0, -1, "left"],
  };

  const walk = (event) => {
    if (event.target.tagName !== "TD" || event.altKey || event.metaKey || event.shiftKey) return;
    const [row, place] = at;
    const last = heads.length - 1;
    const jump = {
      Home: () => [event.ctrlKey ? 0 : row, 1],
      End: () => [event.ctrlKey ? table.tBodies[0].rows.length - 1 : row, last],
    }[event.key];
    if (jump) {
      choose(cellAt(jump()), true);
    } else if (event.ctrlKey) {
      return;
    } else if (WAYS[event.key]) {
      const [down, right, way] = WAYS[event.key];
      const next = place + right > 0 ? cellAt([row + down, place + right]) : undefined;
      if (next) choose(next, true);
      else leave(way, neighbour(nameOf(chosen()), down, right));
    } else if (event.key === "PageDown" || event.key === "PageUp") {
      leave(event.key === "PageDown" ? "down" : "up");
    } else {
      return;
    }
    event.preventDefault();
  };

  const show = (data) => {
    const update = JSON.parse(data);
    const changed = [];
    const callbacks = {
      beforeAttributeUpdated: (name) => !OURS.has(name),
      beforeNodeMorphed: (old, made) => {
        if (old.tagName === "TD" && (old.textContent !== made.textContent || contentOf(old) !== contentOf(made))) changed.push(old);
      },
    };
    for (const [id, html] of Object.entries(update.parts)) {
      Idiomorph.morph(document.getElementById(id), html, { morphStyle: "outerHTML", callbacks });
    }
    flash(changed);
    if (changed.includes(chosen())) line.dataset.of = "";
    tell();
    const troubled = document.getElementById("trouble") !== null;
    sheet.classList.toggle("stale", troubled);
    stream.tell(troubled, update.at);
  };

  // The end of the animation removes the mark. Without animations, the mark stays until the next change.
  const flash = (cells) => {
    if (!cells.length) return;
    if (quiet.matches) table.querySelectorAll("[data-changed]").forEach((cell) => cell.removeAttribute("data-changed"));
    cells.forEach((cell) => cell.removeAttribute("data-changed"));
    void table.offsetWidth; // force a reflow, so that the animation of a marked cell restarts
    cells.forEach((cell) => cell.setAttribute("data-changed", ""));
  };

  // Without this script the element is a table. With keyboard navigation between cells, its role is grid.
  const prepare = () => {
    table.setAttribute("role", "grid");
    table.setAttribute("aria-readonly", "true");
    sheet.removeAttribute("tabindex");
    const first = table.querySelector("td[data-chosen]") ?? cellAt([0, 1]);
    at = [first.parentElement.sectionRowIndex, first.cellIndex];
    line.dataset.of = nameOf(first);
    table.querySelectorAll("td").forEach((cell) => mark(cell, false));
    choose(first, location.hash === WALKED);
    first.scrollIntoView({ block: "nearest", inline: "nearest" });
  };

  table.addEventListener("keydown", walk);
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td");
    if (cell) choose(cell, true);
  });
  table.addEventListener("animationend", (event) => event.target.removeAttribute("data-changed"));
  prepare();
  stream.open(sheet.dataset.stream, show, () => sheet.classList.add("stale"));
})();
