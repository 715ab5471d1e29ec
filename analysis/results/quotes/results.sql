-- page: analysis/results/README.md

-- each to its own sensor? | Yes: # ± # %, no adaptation # ± #, SFLV2 # ± # (
select nth(method, 'heron-8 | heron-none | sflv2') as k, accuracy_mean_percent, accuracy_sd_percent from c_fleet where best and cell = 'group';
-- statistics, taken anew by forward passes alone: # ± # |
select accuracy_mean_percent, accuracy_sd_percent from c_fleet where method = 'heron-statistics';
