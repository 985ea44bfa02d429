"""Small calls beside the generating ones: models, health and metrics."""
from api_common import ApiError, Host, TakesLong, dump_json, shown
from observe.prometheus import OPENMETRICS_TYPE, PROMETHEUS_TYPE, render_metrics, wants_openmetrics

PAGE_MODELS_INLINE = 2              # a metrics page of more is made on a worker: 2 ms would show in the frames


def _models_object(name, settings):
    return {"id": name, "object": "model", "created": settings.started, "owned_by": "mockturtle"}


def build_models_list(settings):
    """The answer of GET /models as JSON bytes; it does not change while the server runs."""
    return dump_json({"object": "list",
                      "data": [_models_object(name, settings) for name in settings.model]})


class ExtrasApiMixin(Host):
    """GET /v1/models, /v1/models/{id}, /health and /metrics."""

    def models_list(self):
        self.send_json(200, self.models_json)

    def models_retrieve(self, name):
        if name not in self.settings.model:
            raise ApiError(404, "The model '%s' does not exist." % shown(name), code="model_not_found")
        self.send_json(200, _models_object(name, self.settings))

    def health_read(self):
        self.send_json(200, {"status": "ok"})

    def metrics_read(self):
        if self.breathe is None and len(self.metrics.models) > PAGE_MODELS_INLINE:
            raise TakesLong()
        openmetrics = wants_openmetrics(self.headers.get("accept", ""))
        self.send_text(render_metrics(self.metrics, openmetrics, self.breathe),
                       OPENMETRICS_TYPE if openmetrics else PROMETHEUS_TYPE)
