"""Problems with solutions in closed form, in float64, on which the methods are tested and studied."""
