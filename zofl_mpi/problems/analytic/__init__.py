"""Problems whose solutions are known in closed form, in float64: what the methods are tested and studied on."""
