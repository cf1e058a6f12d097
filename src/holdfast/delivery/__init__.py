"""How results leave: the states of a run, ordered pieces, exports."""
