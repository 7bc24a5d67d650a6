"use strict";
(() => {
  const picture = document.getElementById("picture");
  const stage = document.getElementById("stage");
  const facts = document.getElementById("facts");
  const [, , wide, high] = picture.getAttribute("viewBox").split(" ").map(Number);
  const view = { x: 0, y: 0, scale: 1 };

  // Everything but styles goes into one group, which moves; the picture itself fills the stage.
  const group = document.createElementNS(picture.namespaceURI, "g");
  group.id = "view";
  for (const part of [...picture.children]) {
    if (!["title", "desc", "style"].includes(part.tagName)) group.append(part);
  }
  group.querySelector(".paper")?.remove();
  picture.append(group);
  for (const name of ["viewBox", "width", "height"]) picture.removeAttribute(name);

  const show = () => {
    group.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
  };
  const fit = (least) => {
    const room = stage.getBoundingClientRect();
    const fitting = Math.min(room.width / wide, room.height / high, 2.5);
    view.scale = Math.max(fitting, least);
    view.x = Math.max((room.width - wide * view.scale) / 2, 0);
    view.y = Math.max((room.height - high * view.scale) / 2, 0);
    hide();
    show();
  };
  const zoom = (factor, x, y) => {
    const scale = Math.min(Math.max(view.scale * factor, 0.05), 20);
    view.x = x - (x - view.x) * scale / view.scale;
    view.y = y - (y - view.y) * scale / view.scale;
    view.scale = scale;
    hide();
    show();
  };
  const zoomMiddle = (factor) => zoom(factor, stage.clientWidth / 2, stage.clientHeight / 2);
  const move = (dx, dy) => {
    view.x += dx;
    view.y += dy;
    hide();
    show();
  };

  // A part names the devices it stands for (data-at) and the links, as pairs of devices (data-to).
  const hot = [...picture.querySelectorAll(".hot")].map((part) => ({
    part,
    at: (part.dataset.at ?? "").split(" ").filter(Boolean),
    to: (part.dataset.to ?? "").split(" ").filter(Boolean).map((pair) => pair.split("-")),
  }));
  let lit = null;
  const light = (part) => {
    if (part === lit) return;
    lit = part;
    const own = hot.find((one) => one.part === part);
    const ends = new Set([...(own?.at ?? []), ...(own?.to ?? []).flat()]);
    const reached = new Set(ends);
    const joins = (one) => one.part === part
      || (own.at.length > 0 && one.to.some((pair) => pair.some((end) => ends.has(end))));
    for (const one of own ? hot : []) if (joins(one)) one.to.flat().forEach((end) => reached.add(end));
    for (const one of hot) {
      const is = own !== undefined && (joins(one) || one.at.some((end) => reached.has(end)));
      one.part.classList.toggle("lit", is);
    }
    picture.classList.toggle("dim", ends.size > 0);
  };
  const hide = () => {
    facts.hidden = true;
    light(null);
  };
  const tell = (part, x, y) => {
    light(part);
    facts.textContent = part.getAttribute("aria-label");
    facts.hidden = false;
    const room = stage.getBoundingClientRect();
    const box = facts.getBoundingClientRect();
    const left = Math.min(x + 14, room.width - box.width - 6);
    const below = y + 18 + box.height < room.height;
    facts.style.left = `${Math.max(left, 6)}px`;
    facts.style.top = `${Math.max(below ? y + 18 : y - box.height - 10, 6)}px`;
  };

  // Facts stand in the titles of the picture; here a box of the page's own shows them, also to who uses keys.
  for (const part of picture.querySelectorAll(".hot")) {
    const title = part.querySelector("title");
    part.setAttribute("aria-label", title.textContent);
    part.setAttribute("role", "img");
    part.setAttribute("tabindex", "0");
    title.remove();
    for (const wire of [...part.querySelectorAll(".wire")]) {
      const reach = wire.cloneNode();
      reach.setAttribute("class", "reach");
      reach.removeAttribute("stroke-width");
      part.append(reach);
    }
    part.addEventListener("focus", () => {
      if (!part.matches(":focus-visible")) return;
      const room = stage.getBoundingClientRect();
      const box = part.getBoundingClientRect();
      let dx = 0;
      let dy = 0;
      if (box.left < room.left || box.right > room.right) dx = room.left + room.width / 2 - box.left - box.width / 2;
      if (box.top < room.top || box.bottom > room.bottom) dy = room.top + room.height / 2 - box.top - box.height / 2;
      if (dx || dy) move(dx, dy);
      tell(part, box.left + box.width / 2 + dx - room.left, box.bottom + dy - room.top - 8);
    });
    part.addEventListener("blur", hide);
  }

  let last = null;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    last = [event.clientX, event.clientY];
  });
  picture.addEventListener("pointermove", (event) => {
    if (last && event.buttons & 1) {
      if (!picture.classList.contains("moving")) {
        if (Math.hypot(event.clientX - last[0], event.clientY - last[1]) < 3) return;
        picture.classList.add("moving");
        picture.setPointerCapture(event.pointerId);
      }
      move(event.clientX - last[0], event.clientY - last[1]);
      last = [event.clientX, event.clientY];
      return;
    }
    last = null;
    const part = event.target.closest?.(".hot");
    const room = stage.getBoundingClientRect();
    if (part) tell(part, event.clientX - room.left, event.clientY - room.top);
    else hide();
  });
  for (const name of ["pointerup", "pointercancel"]) {
    picture.addEventListener(name, () => {
      last = null;
      picture.classList.remove("moving");
    });
  }
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("wheel", (event) => {
    event.preventDefault();
    const room = stage.getBoundingClientRect();
    const lines = event.deltaMode === 1 ? 16 : 1;
    zoom(Math.exp(-event.deltaY * lines / 500), event.clientX - room.left, event.clientY - room.top);
  }, { passive: false });
  picture.addEventListener("dblclick", () => fit(0));
  picture.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0),
      ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60),
      "+": () => zoomMiddle(1.25), "=": () => zoomMiddle(1.25), "-": () => zoomMiddle(0.8),
      0: () => fit(0), Escape: hide,
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.getElementById("in").addEventListener("click", () => zoomMiddle(1.25));
  document.getElementById("out").addEventListener("click", () => zoomMiddle(0.8));
  document.getElementById("fit").addEventListener("click", () => fit(0));
  window.addEventListener("resize", () => fit(0.72));
  fit(0.72);
})();
