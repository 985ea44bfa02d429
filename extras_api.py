"""Small calls beside the generating ones: models and health."""
from api_common import ApiError, Host, shown


class ExtrasApiMixin(Host):
    """GET /v1/models, /v1/models/{id} and /health."""

    def models_list(self):
        self.send_json(200, {"object": "list",
                             "data": [self._models_object(name) for name in self.settings.models]})

    def models_retrieve(self, name):
        if name not in self.settings.models:
            raise ApiError(404, "The model '%s' does not exist." % shown(name), code="model_not_found")
        self.send_json(200, self._models_object(name))

    def _models_object(self, name):
        return {"id": name, "object": "model", "created": self.settings.started,
                "owned_by": "mockturtle"}

    def health_read(self):
        self.send_json(200, {"status": "ok"})
