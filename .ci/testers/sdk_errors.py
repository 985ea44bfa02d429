"""What a fault becomes for programs on top of the openai SDK: the class that it documents."""
import json

import openai

SDK_ERRORS = (                          # (fault, whether in a stream, class)
    ("error:status=400", False, openai.BadRequestError), ("error:status=401", False, openai.AuthenticationError),
    ("error:status=404", True, openai.NotFoundError), ("error:status=429", True, openai.RateLimitError),
    ("error:status=500", False, openai.InternalServerError), ("slow_headers:ms=60000", False, openai.APITimeoutError),
    ("cut:where=headers", True, openai.APIConnectionError), ("cut:event=4", True, openai.APIConnectionError),
    ("wrong_length", False, openai.APIConnectionError), ("malformed", True, json.JSONDecodeError))
