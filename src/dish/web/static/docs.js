// Lists the routes of openapi.json.
"use strict";

const make = (tag, ...children) => {
  const element = document.createElement(tag);
  element.append(...children);
  return element;
};
const block = (title, value) => make("details", make("summary", title), make("pre", JSON.stringify(value, null, 2)));

function resolve(schema, all) {
  const name = schema?.$ref?.split("/").pop();
  return name ? all[name] : schema;
}

function route(method, path, about, all) {
  const article = make("article", make("h2", make("code", `${method.toUpperCase()} ${path}`)), make("p", about.description || ""));
  for (const p of about.parameters || []) article.append(make("p", make("code", p.name), ` (${p.in}): ${JSON.stringify(p.schema)}`));
  for (const [kind, { schema }] of Object.entries(about.requestBody?.content || {})) {
    article.append(block(`takes ${kind}`, resolve(schema, all)));
  }
  for (const [kind, { schema }] of Object.entries(about.responses?.["200"]?.content || {})) {
    if (schema) article.append(block(`answers ${kind}`, resolve(schema, all)));
  }
  const errors = Object.keys(about.responses || {}).filter((status) => status !== "200");
  if (errors.length) article.append(make("p", "Errors: ", make("code", errors.join(", ")), ", as ", make("code", '{"error": "…"}')));
  return article;
}

fetch("/openapi.json").then((response) => response.json()).then(({ paths, components }) => {
  const articles = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => route(method, path, about, components.schemas)));
  document.getElementById("routes").replaceChildren(...articles);
}).catch(() => { document.getElementById("routes").textContent = "The schema could not be loaded."; });
