// Shows the values under the pointer; the charts need no script.
for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg"), out = figure.querySelector(".figures");
  if (!svg) continue;
  const cursor = svg.querySelector(".cursor"), still = [...out.childNodes];
  const lines = [...svg.querySelectorAll("g")].map(g => ({
    run: g.getAttribute("class"), label: g.dataset.label,
    x: (g.dataset.x || "").split(" "), y: (g.dataset.y || "").split(" "),
    at: g.querySelector(".curve").getAttribute("points").split(" ").map(point => +point.split(",")[0]),
  })).filter(line => line.x[0] !== "");
  const nearest = (line, x) => line.at.reduce((best, at, i) => Math.abs(at - x) < Math.abs(line.at[best] - x) ? i : best, 0);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    if (!lines.length) return;
    const first = lines[0], i = nearest(first, x);
    cursor.setAttribute("x1", first.at[i]); cursor.setAttribute("x2", first.at[i]); cursor.style.visibility = "visible";
    const parts = [document.createTextNode(svg.dataset.axis + " " + first.x[i])];
    for (const line of lines) {
      const value = document.createElement("b");
      value.className = line.run; value.textContent = line.y[nearest(line, x)];
      parts.push(value);
    }
    out.replaceChildren(...parts);
  });
  svg.addEventListener("pointerleave", () => { out.replaceChildren(...still); cursor.style.visibility = "hidden"; });
}
