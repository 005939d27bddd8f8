// The entry of the tab: TensorBoard's page loads this module in a frame, and calls `render`.

/** Fills the frame with the viewer, and starts it. */
export async function render() {
  document.documentElement.lang = "en";
  for (const name of ["style.css", "tab.css"]) {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = name;
    document.head.append(sheet);
  }
  const body = await (await fetch("body.html")).text();
  document.body.append(...new DOMParser().parseFromString(body, "text/html").body.children);
  await script("dagre.js");
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
