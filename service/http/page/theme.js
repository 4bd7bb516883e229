// The button that switches between the light and the dark theme. The choice is remembered by the browser.

const root = document.documentElement;
const button = document.querySelector("#theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function dark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
}

function show() {
  button.textContent = dark() ? "Light" : "Dark";
}

function remembered() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // A browser that keeps nothing: the choice lasts as long as the page.
  }
  show();
});
system.addEventListener("change", show);
show();
