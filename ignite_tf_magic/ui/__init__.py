"""Parts that shell and notebook share: options, tables and messages, workers' output joined on one screen."""
