from django.urls import path, re_path

from controlplane.inference.views.chat import chat_completions
from controlplane.inference.views.completions import completions
from controlplane.inference.views.health import healthz, readyz
from controlplane.inference.views.messages import messages, messages_count_tokens
from controlplane.inference.views.missing import missing
from controlplane.inference.views.models import model_detail, model_list
from controlplane.inference.views.openapi import openapi
from controlplane.inference.views.responses import responses

app_name = "inference"
urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("v1/chat/completions", chat_completions, name="chat-completions"),
    path("v1/completions", completions, name="completions"),
    path("v1/responses", responses, name="responses"),
    path("v1/messages", messages, name="messages"),
    path("v1/messages/count_tokens", messages_count_tokens, name="messages-count-tokens"),
    path("v1/openapi.json", openapi, name="openapi"),
    path("v1/models", model_list, name="models"),
    path("v1/models/<path:name>", model_detail, name="model"),
    # The base URL that DeepSeek documents for Anthropic's clients.
    path("anthropic/v1/messages", messages, name="anthropic-messages"),
    path("anthropic/v1/messages/count_tokens", messages_count_tokens, name="anthropic-messages-count-tokens"),
    path("anthropic/v1/models", model_list, name="anthropic-models"),
    path("anthropic/v1/models/<path:name>", model_detail, name="anthropic-model"),
    re_path(r"^(?:v1|anthropic)(?:/.*)?$", missing),
]
