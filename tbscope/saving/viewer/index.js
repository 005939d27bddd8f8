// The entry of the tab: TensorBoard's page loads this module in a frame, and calls `render`.

/** Fills the frame with the viewer, and starts it. */
export async function render() {
  document.documentElement.lang = "en";
  // All files are requested at once, as the server may be far away.
  for (const [rel, href] of [["stylesheet", "style.css"], ["stylesheet", "tab.css"], ["modulepreload", "tab.js"]]) {
    document.head.append(Object.assign(document.createElement("link"), {rel, href}));
  }
  const [body] = await Promise.all([fetch("body.html").then((answer) => answer.text()), script("dagre.js")]);
  document.body.append(...new DOMParser().parseFromString(body, "text/html").body.children);
  const {open} = await import("./tab.js");
  await open();
}

function script(name) {
  return new Promise((loaded, failed) => {
    const element = document.createElement("script");
    element.src = name;
    element.addEventListener("load", loaded);
    element.addEventListener("error", () => failed(new Error(`${name} cannot be loaded`)));
    document.head.append(element);
  });
}
