// What this tab of the browser remembers until it is closed, also when the page is loaded again.

export function remember(name, value) {
  try {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  } catch {
    // The browser keeps nothing.
  }
}

export function remembered(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}
