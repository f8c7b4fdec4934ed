"use strict";
(() => {
  // As formatting.format_duration: the two largest units.
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const formatDuration = (seconds) => {
    const parts = [];
    for (const [unit, length] of units) {
      const count = Math.trunc(seconds / length);
      seconds -= count * length;
      if (count) parts.push(count + unit);
    }
    return parts.slice(0, 2).join("") || "0s";
  };
  const formatAge = (seconds) =>
    seconds < -60 ? formatDuration(-seconds) + " ahead of the local clock" : formatDuration(Math.max(seconds, 0)) + " ago";
  // The page may stay open for days: ages grow, and the watermark becomes old.
  const updateAges = () => {
    for (const time of document.querySelectorAll("time[data-age]")) {
      time.textContent = formatAge(Math.trunc((Date.now() - Date.parse(time.dateTime)) / 1000));
    }
    for (const item of document.querySelectorAll("[data-old-after]")) {
      const isOld = Date.now() > Date.parse(item.dataset.oldAfter);
      item.hidden = !isOld;
      if (isOld) {
        document.getElementById("verdict").classList.add("problems");
        document.getElementById("fine").hidden = true;
      }
    }
  };
  updateAges();
  setInterval(updateAges, 10000);
})();
