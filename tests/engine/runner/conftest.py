from tests.engine.dist.conftest import prefork, prefork_server

__all__ = ["prefork", "prefork_server"]
