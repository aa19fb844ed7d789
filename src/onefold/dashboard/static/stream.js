// A page's stream of updates, and what the corner of the page says of it.
"use strict";

const stream = (() => {
  const state = document.getElementById("state");
  const SILENT_AFTER_MS = 8000; // an update comes every second; a snapshot that fails takes up to six
  let heard = Date.now();

  const show = (name, text) => {
    if (state.dataset.state !== name) state.dataset.state = name;
    if (state.textContent !== text) state.textContent = text;
  };

  // What a page shows is live, as of that moment, or its last update was not to be had.
  const tell = (troubled, at) => show(troubled ? "lost" : "live", troubled ? "not up to date" : `live, ${at}`);

  // Hands the data of each update to `update`; calls `lost` while none come.
  const open = (address, update, lost) => {
    const gone = () => {
      show("lost", "connection lost, trying again");
      lost();
    };
    const connect = () => {
      const source = new EventSource(address);
      source.addEventListener("update", (event) => { heard = Date.now(); update(event.data); });
      source.addEventListener("error", () => {
        gone();
        // The browser tries again by itself, except after an answer that is no stream.
        if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
      });
      addEventListener("pagehide", () => source.close());
    };
    setInterval(() => { if (Date.now() - heard > SILENT_AFTER_MS) gone(); }, 1000);
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
    connect();
  };

  return { open, tell };
})();
