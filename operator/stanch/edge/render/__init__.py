"""From a DisaggDeployment to the objects of its roles, and the kit into pod templates. Pure."""
