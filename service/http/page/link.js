// A link to this page that holds the input in its fragment, which browsers never send to a server.

const PREFIX = "#light-curve=";
export const LONGEST = 30_000; // characters; some programs cut longer addresses

async function through(bytes, transform) {
  const stream = new Blob([bytes]).stream().pipeThrough(transform);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Fragment of {light_curve, settings, metadata, view, mjd}: the light curve as it was sent, the settings and the metadata that
 * were chosen, and what the plots and the slider show. All but the light curve may be missing.
 */
export async function fragmentOf(content) {
  const packed = await through(new TextEncoder().encode(JSON.stringify(content)), new CompressionStream("deflate-raw"));
  let text = "";
  for (let i = 0; i < packed.length; i += 0x8000) text += String.fromCharCode(...packed.subarray(i, i + 0x8000));
  return PREFIX + btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Content of a fragment, or null if it holds none. Raises Error for a damaged one. */
export async function contentOf(fragment) {
  if (!fragment.startsWith(PREFIX)) return null;
  try {
    const text = atob(fragment.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = await through(
      Uint8Array.from(text, (each) => each.charCodeAt(0)),
      new DecompressionStream("deflate-raw"),
    );
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new Error("The link is damaged or was cut short.");
  }
}
