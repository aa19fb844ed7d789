// Updates the page of a view: replaces changed parts, each in the element with the same id.
"use strict";

(() => {
  const place = document.querySelector("[data-stream]");

  const show = (data) => {
    const update = JSON.parse(data);
    for (const [id, html] of Object.entries(update.parts)) {
      Idiomorph.morph(document.getElementById(id), html, { morphStyle: "outerHTML" });
    }
    place.classList.toggle("stale", update.trouble !== "");
    stream.tell(update.trouble !== "", update.at);
  };

  if (place) stream.open(place.dataset.stream, show, () => place.classList.add("stale"));
})();
