// Where in a JSON text a JSON pointer leads, so that the place of an error can be shown.

/**
 * [start, end) of the value that a pointer leads to, or null. What is missing is marked by the object that lacks it;
 * `withName` includes the name of the member.
 */
export function locate(text, pointer, withName = false) {
  const steps = pointer
    .split("/")
    .slice(1)
    .map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
  let at = text.startsWith("\uFEFF") ? 1 : 0;
  const space = () => {
    while (/\s/.test(text[at] || "")) at++;
  };
  const string = () => {
    const start = at++;
    while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
    return JSON.parse(text.slice(start, ++at));
  };
  /** Go past a value; returns its place, or that of what `rest` leads to within it. */
  const value = (rest) => {
    space();
    const start = at;
    let found = null;
    if (text[at] === "{" || text[at] === "[") {
      const object = text[at++] === "{";
      for (let index = 0; ; index++) {
        space();
        if (text[at] === "}" || text[at] === "]" || at >= text.length) break;
        let name = String(index);
        const nameStart = at;
        if (object) {
          name = string();
          space();
          at++; // the colon
        }
        const inside = rest !== null && rest.length > 0 && (rest[0] === name || rest[0] === name.slice(0, 60));
        const place = value(inside ? rest.slice(1) : null);
        if (inside) found = withName && rest.length === 1 ? [nameStart, at] : place;
        space();
        if (text[at] === ",") at++;
      }
      at++;
    } else if (text[at] === '"') {
      string();
    } else {
      while (at < text.length && !/[,\]}\s]/.test(text[at])) at++;
    }
    if (rest !== null && rest.length === 0) return [start, at];
    return found || (rest !== null && rest.length > 0 ? [start, start + 1] : null);
  };
  try {
    return value(steps);
  } catch {
    return null;
  }
}

/** Place that a message of the service names by "line 3", "byte 16" or "character 16" of the text. */
export function placeInMessage(text, message) {
  const line = /\bline (\d+)/.exec(message || "");
  if (line) {
    const lines = text.split("\n");
    const before = lines.slice(0, Number(line[1]) - 1).reduce((sum, each) => sum + each.length + 1, 0);
    return [before, before + (lines[Number(line[1]) - 1] || " ").length];
  }
  const match = /\b(byte|character) (\d+)/.exec(message || "");
  if (!match) return null;
  let start = Number(match[2]);
  if (match[1] === "byte") start = new TextDecoder().decode(new TextEncoder().encode(text).slice(0, start)).length;
  start = Math.min(start, Math.max(0, text.length - 1));
  return [start, start + 1];
}

/** Text around a place: {before, marked, after, line}. */
export function excerpt(text, [start, end], around = 90) {
  const shortEnd = Math.min(end, start + 200);
  return {
    before: (start > around ? "…" : "") + text.slice(Math.max(0, start - around), start),
    marked: text.slice(start, shortEnd) || " ",
    after: text.slice(shortEnd, shortEnd + around) + (shortEnd + around < text.length ? "…" : ""),
    line: text.slice(0, start).split("\n").length,
  };
}
