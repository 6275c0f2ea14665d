// Dark or light: the reader's choice if there is one, else the system's. Runs before the page is drawn.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try { return localStorage.getItem("dish-theme"); } catch { return null; }
  };
  const dark = () => (chosen() ? chosen() === "dark" : system.matches);
  const apply = () => {
    document.documentElement.dataset.theme = dark() ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.setAttribute("aria-pressed", String(dark()));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      const next = dark() ? "light" : "dark";
      try { localStorage.setItem("dish-theme", next); } catch { /* private window: only for now */ }
      document.documentElement.dataset.theme = next;
      document.getElementById("theme").setAttribute("aria-pressed", String(next === "dark"));
    });
  });
})();
