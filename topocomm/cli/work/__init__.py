"""What the commands that plan, simulate and fit do, once their options are known to be right."""
