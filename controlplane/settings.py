"""Django settings: composition only. What an installation can change is in `controlplane.config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from controlplane.config import home, secret_key, settings

_galley = settings()
_home = home()

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = secret_key()
DEBUG = _galley.debug
ALLOWED_HOSTS = _galley.host_names

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "controlplane.accounts",
    "controlplane.audit",
    "controlplane.fleet",
    "controlplane.metering",
    "controlplane.telemetry",
    "controlplane.caching",
    "controlplane.inference",
    "workers",
    "dashboard",
]
MIGRATION_MODULES = {
    name: f"migrations.{name}"
    for name in ("accounts", "audit", "caching", "fleet", "inference", "metering", "telemetry")
}

MIDDLEWARE = [
    "controlplane.middleware.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.middleware.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _postgres(url: str) -> dict[str, Any]:
    """A `postgresql://user:password@host:port/name?option=value` URL as Django's dictionary."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or unquote(parts.hostname or ""),
        "PORT": str(parts.port or options.pop("port", "")),
        "CONN_MAX_AGE": 0,  # back to the pool: under ASGI each request has a thread, and a connection, of its own
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            "connect_timeout": 5,
            # The wait is also what each caller learns of an absent database after: below AUTHENTICATION_WAIT_S.
            "pool": {"min_size": 1, "max_size": 8, "timeout": 3},
            **options,
        },
    }


DATABASES = {"default": _postgres(_galley.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = _galley.redis_url
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL or "redis://"}}
SESSION_ENGINE = "django.contrib.sessions.backends.db"
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "galley"},
    }
}

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["controlplane.accounts.backends.ThrottledBackend"]
METRICS_KEY_REQUIRED = _galley.metrics_key
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "dashboard:login"
LOGIN_REDIRECT_URL = "dashboard:overview"
LOGOUT_REDIRECT_URL = "dashboard:login"
SESSION_COOKIE_HTTPONLY = True
# Behind a proxy `controlplane.asgi` sets the request's scheme and client, for trusted proxies only;
# SECURE_PROXY_SSL_HEADER would believe everybody.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _galley.public_url.startswith("https://")
CSRF_TRUSTED_ORIGINS = [_galley.public_url] if _galley.public_url else []
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT = _home.static
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.accounts.authentication.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.CursorPagination",
    "PAGE_SIZE": 50,
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Galley's management API",
    "DESCRIPTION": "Deployments, retention and the KV store; the inference API under /v1/ has documents of its own.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s", "datefmt": "%Y-%m-%dT%H:%M:%S%z"}
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": _galley.log_level},
}
