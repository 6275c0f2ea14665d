// The dark or light theme: the user's choice, or else the system's. Runs before the page is drawn.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try { return localStorage.getItem("dish-theme"); } catch { return null; }
  };
  const dark = () => (chosen() ? chosen() === "dark" : system.matches);
  const apply = (now) => {
    document.documentElement.dataset.theme = now ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.textContent = now ? "Light theme" : "Dark theme"; // what a click does
  };
  apply(dark());
  system.addEventListener("change", () => apply(dark()));
  addEventListener("DOMContentLoaded", () => {
    apply(dark());
    document.getElementById("theme").addEventListener("click", () => {
      const next = document.documentElement.dataset.theme !== "dark";
      try { localStorage.setItem("dish-theme", next ? "dark" : "light"); } catch { /* private window: not remembered */ }
      apply(next);
    });
  });
})();
