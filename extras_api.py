"""Small calls beside the generating ones: models, health and metrics."""
from api_common import ApiError, Host, TakesLong, dump_json, shown
from gateway_requests import AskingBackend, ForwardAssembler, ForwardedRequest
from observe.prometheus import OPENMETRICS_TYPE, PROMETHEUS_TYPE, render_metrics, wants_openmetrics
from runs import Completion

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
        if self.backend.relays:
            authorization = self.passed_authorization()
            self._models_ask(lambda: {"object": "list", "data": self.backend.models(authorization)})
            return
        self.send_json(200, self.models_json)

    def models_retrieve(self, name):
        if self.backend.relays:
            authorization = self.passed_authorization()
            self._models_ask(lambda: _find_model(name, self.backend.models(authorization)))
            return
        if name not in self.settings.model:
            raise _no_such_model(name)
        self.send_json(200, _models_object(name, self.settings))

    def _models_ask(self, ask):
        self.send_completion(Completion(ForwardedRequest("GET", "", None), AskingBackend(ask), ForwardAssembler(), self.metrics,
                                        self.log_exception), False)

    def health_read(self):
        if self.backend.relays:
            self._models_ask(self.backend.health)
            return
        self.send_json(200, {"status": "ok"})

    def metrics_read(self):
        if self.breathe is None and len(self.metrics.models) > PAGE_MODELS_INLINE:
            raise TakesLong()
        openmetrics = wants_openmetrics(self.headers.get("accept", ""))
        self.send_text(render_metrics(self.metrics, openmetrics, self.breathe),
                       OPENMETRICS_TYPE if openmetrics else PROMETHEUS_TYPE)


def _no_such_model(name):
    return ApiError(404, "The model '%s' does not exist." % shown(name), code="model_not_found")


def _find_model(name, models):
    for model in models:
        if model["id"] == name:
            return model
    raise _no_such_model(name)
