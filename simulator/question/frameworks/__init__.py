"""Framework profiles: what each training framework keeps in memory and hides behind compute."""
