"""From a grouped model to steps in an order, and how these are run."""
