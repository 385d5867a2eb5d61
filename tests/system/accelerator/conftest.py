from tests.engine.dist.conftest import prefork, prefork_server
from tests.support.emulated import emulated, emulated_server

__all__ = ["emulated", "emulated_server", "prefork", "prefork_server"]
