// Puts what has changed on the server into the page: the parts with `data-live`, by their id. Without it pages are
// the same, but stay as they were loaded.
"use strict";
(() => {
  const EVERY_MS = 2000, PICTURE_MS = 10000;
  const button = document.getElementById("live");
  if (document.querySelector("main[data-still]")) return; // to make it anew is work for the DRO
  let isLive = true, isAsking = false;
  button.hidden = false;
  button.addEventListener("click", () => {
    isLive = !isLive;
    button.setAttribute("aria-pressed", String(isLive));
    button.textContent = isLive ? "Live" : "Paused";
    if (isLive) look();
  });
  async function look() {
    if (!isLive || isAsking || document.hidden) return;
    isAsking = true;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(10000) });
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = next.getElementById(part.id);
        const isUsed = part.contains(document.activeElement) || !getSelection().isCollapsed;
        if (other && !isUsed && other.innerHTML !== part.innerHTML) part.innerHTML = other.innerHTML;
      }
      button.textContent = "Live";
    } catch {
      button.textContent = "No answer";
    }
    isAsking = false;
  }
  setInterval(look, EVERY_MS);
  setInterval(() => {
    if (!isLive || document.hidden) return;
    for (const picture of document.querySelectorAll("img[data-again]")) {
      const address = new URL(picture.src);
      address.searchParams.set("at", Date.now());
      picture.src = address;
    }
  }, PICTURE_MS);
})();
