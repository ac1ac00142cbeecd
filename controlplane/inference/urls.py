from django.urls import path, re_path

from controlplane.inference.views.chat import chat_completions
from controlplane.inference.views.health import healthz, readyz
from controlplane.inference.views.missing import missing
from controlplane.inference.views.models import model_detail, model_list

app_name = "inference"
urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("v1/chat/completions", chat_completions, name="chat-completions"),
    path("v1/models", model_list, name="models"),
    path("v1/models/<path:name>", model_detail, name="model"),
    re_path(r"^v1(?:/.*)?$", missing),
]
