// A page's stream of updates, and the state of the stream in the corner of the page.
"use strict";

const stream = (() => {
  const state = document.getElementById("state");
  const SILENT_AFTER_MS = 8000; // updates come each second, but a failing snapshot takes up to six
  let heard = Date.now();

  const show = (name, text) => {
    if (state.dataset.state !== name) state.dataset.state = name;
    if (state.textContent !== text) state.textContent = text;
  };

  // Content is live as of a time, or the last update failed.
  const tell = (troubled, at) => show(troubled ? "lost" : "live", troubled ? "not up to date" : `live, ${at}`);

  // Calls `update` with the data of each update, and `lost` while no updates come.
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
        // The browser reconnects by itself, except after a response that is no stream.
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
