"""The deterministic engine: discrete events in virtual time, real gradients."""
