"use strict";
(() => {
  const spans = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const spell = (seconds) => (seconds < -60 ? span(-seconds) + " ahead of this clock" : span(Math.max(seconds, 0)) + " ago");
  const span = (seconds) => {
    for (const [length, unit] of spans) {
      if (seconds >= (length > 1 ? 2 * length : 0)) {
        const number = Math.trunc(seconds / length);
        return number.toLocaleString("en-GB") + " " + unit + (number === 1 ? "" : "s");
      }
    }
    return "";
  };
  // Ages go on growing while the page lies open; what is old by now is said, whatever the page said when written.
  const age = () => {
    for (const each of document.querySelectorAll("time[data-age]")) {
      each.textContent = spell((Date.now() - Date.parse(each.dateTime)) / 1000);
    }
    for (const each of document.querySelectorAll("[data-old-after]")) {
      const old = Date.now() > Date.parse(each.dataset.oldAfter);
      each.hidden = !old;
      if (old) {
        document.getElementById("verdict").classList.add("trouble");
        document.getElementById("fine").hidden = true;
      }
    }
  };
  age();
  setInterval(age, 10000);

  const version = document.documentElement.dataset.version;
  if (!version) return;
  const live = document.getElementById("live");
  const folded = [...document.querySelectorAll("details")];
  for (const key of JSON.parse(sessionStorage.getItem("open") || "[]")) {
    if (folded[key]) folded[key].open = true;
  }
  const ask = async () => {
    try {
      const answer = await fetch("/version", { cache: "no-store" });
      if (!answer.ok) throw new Error();
      live.textContent = "Live: this page renews itself when the lake is published.";
      if ((await answer.text()) !== version) {
        sessionStorage.setItem("open", JSON.stringify(folded.flatMap((each, key) => (each.open ? [key] : []))));
        location.reload();
      }
    } catch {
      live.textContent = "No longer live: `scanlake dashboard --serve` has ended. What is shown stays as it was.";
    }
  };
  setInterval(ask, Number(document.documentElement.dataset.pollSeconds) * 1000);
})();
