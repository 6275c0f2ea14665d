"""
Texts: find sentences on the same subject
=========================================

Sentences become vectors (TF-IDF here; any encoder works), and vectors become codes. The sentences are
**synthetic**: they are put together from the words of eight subjects.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from dish import DISH, HammingIndex

subjects = {
    "cooking": "bake boil butter flour oven pan recipe salt soup spoon stir taste",
    "travel": "airport beach flight hotel luggage map passport ticket tour train visa trip",
    "sport": "ball coach goal league match player score stadium team tennis win referee",
    "money": "account bank card cash credit fee interest loan pay price tax transfer",
    "music": "album band chord concert drum guitar melody piano singer song tune violin",
    "weather": "cloud cold fog forecast heat rain snow storm sun temperature thunder wind",
    "health": "diet doctor dose fever hospital medicine nurse pain pulse sleep vaccine virus",
    "garden": "bloom bulb compost flower garden hedge lawn plant root seed soil weed",
}
common = "a about again all any can day find from good have how last long make my new next now our show the time what"
rng = np.random.default_rng(0)


def sentence(subject):
    """A few words of the subject, of another one and of none."""
    other = rng.choice(list(subjects))
    words = [
        *rng.choice(subjects[subject].split(), 3),
        *rng.choice(subjects[other].split(), 1),
        *rng.choice(common.split(), 6),
    ]
    return " ".join(rng.permutation(words))


labels = np.repeat(list(subjects), 60)
texts = [sentence(subject) for subject in labels]
held_out = np.arange(len(texts)) % 4 == 0
print(texts[0])

# %%
# An encoder, then the codes. The labels of the database are known, those of the queries are not.

encoder = make_pipeline(TfidfVectorizer(), TruncatedSVD(48, random_state=0), Normalizer())
vectors = encoder.fit_transform(texts).astype(np.float32)
hasher = DISH(n_bits=32).fit(vectors[~held_out], labels[~held_out])
index = HammingIndex(n_bits=32, model=hasher.fingerprint_)
index.add(hasher.transform(vectors[~held_out], labels=labels[~held_out]), labels=labels[~held_out])

query = "how long do I bake the soup in the oven"
distances, ids = index.search(hasher.transform(encoder.transform([query]).astype(np.float32)), k=3)
kept = np.flatnonzero(~held_out)
for distance, id in zip(distances[0], ids[0], strict=True):
    print(f"{distance:2d} bits apart, {labels[kept[id]]}: {texts[kept[id]]}")

# %%
# Of which subject are the ten rows that each query finds first?

_, ids = index.search(hasher.transform(vectors[held_out]), k=10)
found = labels[kept][ids]
shares = np.array([[(found[labels[held_out] == a] == b).mean() for b in subjects] for a in subjects])

fig, axes = plt.subplots(figsize=(6, 5), layout="constrained")
image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
axes.set(xticks=range(8), yticks=range(8), xlabel="subject of the results", ylabel="subject of the query")
axes.set_xticklabels(subjects, rotation=45, ha="right")
axes.set_yticklabels(subjects)
fig.colorbar(image, label="share of the first ten")
plt.show()
