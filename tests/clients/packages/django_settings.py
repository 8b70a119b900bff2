"""Django's settings for its own cache tests: one cache for each backend."""

import os

memcached, redis = os.environ["MEMCACHED_ADDR"], os.environ["REDIS_ADDR"]
DATABASES = {
    name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "other")
}
SECRET_KEY = "of tests"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "record.DjangoRunner"
BACKENDS = "django.core.cache.backends"
CACHES = {
    "default": {"BACKEND": f"{BACKENDS}.locmem.LocMemCache"},
    "pymemcache": {"BACKEND": f"{BACKENDS}.memcached.PyMemcacheCache", "LOCATION": memcached},
    "pylibmc": {"BACKEND": f"{BACKENDS}.memcached.PyLibMCCache", "LOCATION": memcached},
    "redis": {"BACKEND": f"{BACKENDS}.redis.RedisCache", "LOCATION": f"redis://{redis}"},
}
