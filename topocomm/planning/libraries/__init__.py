"""What libraries' own collectives take, in closed form: one model for plans, the simulator and calibration."""
