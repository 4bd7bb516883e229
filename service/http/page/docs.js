// Starts Swagger UI on the service's own OpenAPI document, with a model that is served filled into every address.

const ANY_MODEL = [{ name: "default", version: "1.0.0" }]; // where an API key is needed to list them

async function load(path) {
  const response = await fetch(path);
  return response.ok ? response.json() : null;
}

const [description, listed] = await Promise.all([load("openapi.json"), load("v1/models")]);
const [model] = listed?.models || ANY_MODEL;
const values = { model: model.name, version: model.version };
for (const operations of Object.values(description.paths)) {
  for (const operation of Object.values(operations)) {
    for (const parameter of operation.parameters || []) {
      if (parameter.in === "path") parameter.example = values[parameter.name];
    }
  }
}

// Swagger UI takes NDJSON for one JSON document, which it is not; without a type it shows the lines as they are.
const shownType = (type) => (type === "application/x-ndjson" ? "" : type);
const showLines = {
  wrapComponents: {
    responseBody: (Body, { React }) => (props) =>
      React.createElement(Body, { ...props, contentType: shownType(props.contentType) }),
  },
  afterLoad({ fn }) {
    const sample = fn.getSampleSchema;
    fn.getSampleSchema = (schema, type, ...rest) => sample(schema, shownType(type), ...rest);
  },
};

document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
SwaggerUIBundle({
  spec: description,
  dom_id: "#reference",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null, // would be a request to another host
  persistAuthorization: false,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  plugins: [showLines],
});
