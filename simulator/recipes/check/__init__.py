"""Will this recipe run: a recipe and the cluster it is meant for, judged before it is launched."""
