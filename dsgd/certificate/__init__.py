"""A certificate for code from outside of dsgd: it trains as dsgd's text of the same method does, or where it does not.

The code is a class with one of three interfaces (`interfaces.py`). It trains small problems (`small_problems.py`) in
real processes (`processes.py`), in double precision. `certificate.py` compares its parameters and buffers at each
gradient with dsgd's algorithm in `dsgd.torch.distribute` (`counterpart.py`), and with exact reductions that need no
counterpart (`reductions.py`). If they differ, `suspects.py` tries dsgd's algorithm with one defect after the other.
"""
